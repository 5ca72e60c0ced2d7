"""Output of the commands: tables, statistics in two columns, and charts as files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import typer
from rich.console import Console


def open_console() -> Console:
    """Return the standard output, as wide as the terminal; 120 columns in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def print_statistics(lines: Iterable[tuple[str, str]]) -> None:
    """Print (name, text) in two columns."""
    console = open_console()
    for name, text in lines:
        console.print(f"{name:<17}{text}", soft_wrap=True)


def read_chart(path: Path | None) -> Path | None:
    """Return the path of a chart unchanged.

    Raises:
        typer.BadParameter: Its name does not end in .svg.
    """
    if path is not None and path.suffix.lower() != ".svg":
        raise typer.BadParameter("draws SVG: give a name that ends in .svg")
    return path


def write_chart(path: Path, svg: str, *, name: str) -> None:
    """Write a chart to a file, whose folder is made, and print its path on stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, encoding="utf-8")
    print(f"{name} written to {path}", file=sys.stderr)
