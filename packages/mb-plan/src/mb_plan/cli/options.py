"""Options that commands on plans have in common."""

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
