"""Standard streams of a program that was started with some of them closed. Standard library only."""

import os
import sys

STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}
"""Streams in the order of their file descriptors, with their modes."""


def open_standard_streams() -> None:
    """Open the null device in place of each standard stream that is closed.

    The next file that is opened would otherwise take its number, such as a socket or a checkpoint, and what a library
    prints would be written into it. Call it first.
    """
    for number in range(len(STREAMS)):  # first: streams take numbers, too
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    for name, mode in STREAMS.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end
