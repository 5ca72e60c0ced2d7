"""Standard output with tables, and statistics in two columns."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console


def open_console() -> Console:
    """Return the standard output, as wide as the terminal; 120 columns in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def print_statistics(lines: Iterable[tuple[str, str]]) -> None:
    """Print (name, text) in two columns."""
    console = open_console()
    for name, text in lines:
        console.print(f"{name:<17}{text}", soft_wrap=True)
