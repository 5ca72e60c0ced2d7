"""Ranks that are forked from a launcher which has imported what each rank needs. Imports torch.

Importing torch and Megatron Core takes a rank many seconds of CPU time. On a machine without a GPU the launcher imports
them once, and its ranks start with the modules in memory that they share with it. With a GPU each rank is an
interpreter of its own, because a CUDA context does not survive a fork.
"""

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mb_launch.ranks.left_ranks import at_work, mark_result_sent


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedProgram:
    """A Python program that a forked rank runs by calling a function."""

    argv: tuple[str, ...]
    """`sys.argv` of each rank."""
    main: Callable[[], object]
    """Called in each rank. May raise SystemExit."""
    preload: Callable[[], object]
    """Called once in the launcher: imports what ranks need. Must not start threads, which a fork would lose."""


def can_fork_ranks() -> bool:
    """Return whether ranks can be forked: on Linux, without a GPU, if torch has the number of threads that a rank gets.

    OpenMP reads OMP_NUM_THREADS once, when torch is imported. If the variable has changed since, each rank must be an
    interpreter of its own.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    return (
        sys.platform == "linux"
        and not torch.cuda.is_available()
        and threads in (None, str(torch.get_num_threads()))
    )


def run_forked_rank(program: ForkedProgram) -> None:
    """Run a program in a fork of the launcher, as a fresh interpreter would.

    The fork inherits the launcher's signal handlers and exit functions. The handlers are reset to the defaults; the
    exit functions are dropped, and those that the rank registers are run at its end, because multiprocessing leaves a
    process without running them.
    """
    reset_signal_handlers()
    die_with_launcher()
    atexit._clear()
    sys.argv = [*program.argv]
    try:
        with at_work(os.environ):
            program.main()
    finally:
        atexit._run_exitfuncs()
    mark_result_sent(os.environ)  # it follows at once; torch elastic then lets this process end


def die_with_launcher() -> None:
    """Let the kernel kill this process when its parent dies (PR_SET_PDEATHSIG)."""
    launcher = multiprocessing.parent_process()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if launcher is not None and os.getppid() != launcher.pid:  # it died before the call
        os._exit(1)


def reset_signal_handlers() -> None:
    """Replace each signal handler written in Python by the default of a fresh interpreter."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            fresh = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, fresh)
