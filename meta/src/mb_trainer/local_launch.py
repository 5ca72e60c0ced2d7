"""Wiring of mb-launch: `mb ... --nproc N`, with Megatron Core imported once for all ranks. Imports torch."""

import signal
from collections.abc import Sequence
from importlib import import_module

import mb_host
from mb_launch import ForkedProgram, LaunchResult, launch_local

PRELOADED = ("mb_trainer.training", "mb_models.gpt", "mb_checkpoint.mcore", "torch._dynamo")
"""Modules with the imports that nearly every run needs."""


def launch_mb(
    arguments: Sequence[str],
    *,
    processes: int,
    port: int | None = None,
    exit_signal: int = signal.SIGTERM,
    numa_binding: bool = True,
) -> LaunchResult:
    """Run `mb ARGUMENTS` in several processes and wait for them; see `mb_launch.launch_local`."""
    return launch_local(
        ["-m", "mb_trainer", *arguments],
        processes=processes,
        port=port,
        exit_signal=exit_signal,
        numa_binding=numa_binding,
        fork=ForkedProgram(argv=("mb", *arguments), main=run_mb, preload=preload),
    )


def preload() -> None:
    """Import what ranks need. Starts no thread, so that a fork afterwards is safe."""
    mb_host.install()
    for module in PRELOADED:
        import_module(module)


def run_mb() -> None:
    """Run the command line of `sys.argv`."""
    import_module("mb_trainer.cli").main()
