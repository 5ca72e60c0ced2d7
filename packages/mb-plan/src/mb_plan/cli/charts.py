"""Charts as files: the option that names one, and writing it."""

import sys
from pathlib import Path

import typer


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
