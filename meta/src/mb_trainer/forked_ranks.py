"""Ranks that are forked from the launcher once it has imported what each of them needs (CPU only).

Importing torch and Megatron Core costs a rank many seconds of processor time. On a machine without a GPU the launcher
imports them once, and its ranks start with the modules in memory that they share with it. With a GPU each rank is an
interpreter of its own, because a CUDA context does not survive a fork.
"""

import atexit
import os
import signal
import sys
from importlib import import_module

import torch

import mb_host

PRELOADED = ("mb_trainer.training", "mb_models.gpt", "mb_checkpoint.mcore", "torch._dynamo")
"""Modules with the imports that nearly every run needs."""


def can_fork_ranks() -> bool:
    """Return whether ranks may be forked: on Linux, without a GPU, and where torch has the threads that a rank gets.

    OpenMP reads OMP_NUM_THREADS once, when torch is imported. After a later change each rank is an interpreter.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    return (
        sys.platform == "linux"
        and not torch.cuda.is_available()
        and threads in (None, str(torch.get_num_threads()))
    )


def preload() -> None:
    """Import what ranks need. Starts no thread, so that a fork afterwards is safe."""
    mb_host.install()
    for module in PRELOADED:
        import_module(module)


def run_forked_rank(*arguments: str) -> None:
    """Run `mb ARGUMENTS` in a fork of the launcher, as a fresh interpreter would, and end with its exit code.

    The fork inherits the launcher's signal handlers and exit functions. The handlers are set back to the defaults; the
    exit functions are dropped, and those that the rank registers are run at its end, because multiprocessing leaves a
    process without running them.
    """
    restore_signal_defaults()
    atexit._clear()
    sys.argv = ["mb", *arguments]
    try:
        import_module("mb_trainer.cli").main()
    finally:
        atexit._run_exitfuncs()


def restore_signal_defaults() -> None:
    """Replace each signal handler written in Python by the default of a fresh interpreter."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            fresh = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, fresh)
