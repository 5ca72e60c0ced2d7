"""Local launch of `mb ... --nproc N`, with Megatron Core imported once for all ranks. Imports torch."""

import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from runpy import run_module

import mb_guard
import mb_host
from mb_launch import ForkedProgram, launch_local
from mb_metrics import write_missing_stop
from mb_metrics.trainer_api import RunFolder
from mb_resilience.trainer_api import newest_report

PRELOADED = ("mb_trainer.run.build", "mb_models.gpt.provider", "mb_checkpoint.mcore", "torch._dynamo")
"""Modules whose imports nearly every run needs."""


def launch(
    arguments: Sequence[str],
    *,
    processes: int,
    port: int | None,
    exit_signal: int,
    folder: RunFolder,
    numa_binding: bool,
) -> int:
    """Run `mb ARGUMENTS` in several local processes, wait for them, and report their failure; return the exit code.

    See `mb_launch.launch_local`. OMP_NUM_THREADS is set before this module is imported. `folder` is that of the run,
    whose events record a failure.
    """
    began = time.time()
    ended = launch_local(
        ["-m", "mb_trainer", *arguments],
        processes=processes,
        port=port,
        exit_signal=exit_signal,
        numa_binding=numa_binding,
        fork=ForkedProgram(argv=("mb", *arguments), main=run_mb, preload=preload),
    )
    # all processes have ended: a late signal must not change the exit code
    signal.signal(exit_signal, signal.SIG_IGN)
    if ended.failure is not None:
        hang = newest_report(folder.path, since=began)
        found = "" if hang is None else f"{hang}; then "
        print(f"error: {found}{ended.failure.text}", file=sys.stderr)
        message = f"{found}{ended.failure.message}"
        write_missing_stop(folder.events, metrics=folder.metrics, message=message)
    return ended.exit_code


def preload() -> None:
    """Import the modules that ranks need. Starts no thread, so that a later fork is safe."""
    mb_host.install()
    mb_guard.install(quiet=True)
    for module in PRELOADED:
        import_module(module)


def run_mb() -> None:
    """Run the command line in `sys.argv`, as `python -m mb_trainer` does."""
    run_module("mb_trainer", run_name="__main__")
