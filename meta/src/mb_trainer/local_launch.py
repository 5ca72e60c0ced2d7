"""Local launch of `mb ... --nproc N`, with Megatron Core imported once for all ranks. Imports torch."""

import signal
from collections.abc import Sequence
from importlib import import_module
from runpy import run_module

import mb_guard
import mb_host
from mb_launch import ForkedProgram, LaunchResult, launch_local

PRELOADED = ("mb_trainer.run.build", "mb_models.gpt.provider", "mb_checkpoint.mcore", "torch._dynamo")
"""Modules whose imports nearly every run needs."""


def launch_mb(
    arguments: Sequence[str],
    *,
    processes: int,
    port: int | None = None,
    exit_signal: int = signal.SIGTERM,
    numa_binding: bool = True,
) -> LaunchResult:
    """Run `mb ARGUMENTS` in several local processes and wait for them; see `mb_launch.launch_local`."""
    return launch_local(
        ["-m", "mb_trainer", *arguments],
        processes=processes,
        port=port,
        exit_signal=exit_signal,
        numa_binding=numa_binding,
        fork=ForkedProgram(argv=("mb", *arguments), main=run_mb, preload=preload),
    )


def preload() -> None:
    """Import the modules that ranks need. Starts no thread, so that a later fork is safe."""
    mb_host.install()
    mb_guard.install(quiet=True)
    for module in PRELOADED:
        import_module(module)


def run_mb() -> None:
    """Run the command line in `sys.argv`, as `python -m mb_trainer` does."""
    run_module("mb_trainer", run_name="__main__")
