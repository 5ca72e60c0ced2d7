"""Option `--version` of a program that consists of several distributions. Requires the extra `cli`."""

import re
from importlib.metadata import requires

import typer

from mb_schema.versions import installed_version


def required_packages(distribution: str, *, pattern: str) -> list[str]:
    """Return the distributions matching a regular expression that a distribution requires without an extra."""
    found = (re.match(pattern, text) for text in requires(distribution) or () if "extra ==" not in text)
    return [match[0] for match in found if match]


def version_option(distribution: str, *, pattern: str, frameworks: tuple[str, ...] = ()) -> object:
    """Return the option `--version`, which prints a line per distribution and exits. No distribution is imported.

    Args:
        distribution: Printed first.
        pattern: Regular expression for those that it requires and that are printed next.
        frameworks: Printed last.
    """

    def show(wanted: bool) -> None:
        if wanted:
            for name in (distribution, *required_packages(distribution, pattern=pattern), *frameworks):
                typer.echo(f"{name} {installed_version(name) or 'not installed'}")
            raise typer.Exit

    listed = ", ".join(frameworks)
    return typer.Option(
        "--version",
        is_eager=True,
        callback=show,
        help=f"Print the versions of {distribution}, its packages" + (f", {listed}." if listed else "."),
    )
