"""Commands of the programs of all packages. Requires typer, which the extra `cli` of each package installs."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from importlib import import_module
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand

from mb_schema.exit_codes import INTERRUPTED, message_of, print_error
from mb_schema.versions import installed_version


class CommandWithExample(TyperCommand):
    """Command whose epilog contains the arguments of an example; help prints them after the name of the program."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the command."""
        arguments, self.epilog = self.epilog, f"Example: {ctx.command_path} {self.epilog}"
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = arguments


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command whose type is a record of options by the fields of the record."""
    hints: dict[str, Any] = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    shown = []
    for parameter in inspect.signature(command).parameters.values():
        record = records.get(parameter.name)
        types = {} if record is None else get_type_hints(record, include_extras=True)
        shown += [
            parameter.replace(
                name=item.name,
                annotation=types[item.name],
                default=inspect.Parameter.empty if item.default is MISSING else item.default,
                kind=inspect.Parameter.KEYWORD_ONLY,
            )
            for item in (() if record is None else fields(record))
        ] or [parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)]

    @wraps(command)
    def with_records(**values: Any) -> None:
        for name, record in records.items():
            values[name] = record(**{item.name: values.pop(item.name) for item in fields(record)})
        command(**values)

    with_records.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    with_records.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return with_records


def version_option(distribution: str, *, pattern: str = "", frameworks: Sequence[str] = ()) -> Any:
    """Return the option `--version`, which prints a line per distribution and exits. No distribution is imported.

    Args:
        distribution: Printed first.
        pattern: Regular expression for those that it requires without an extra and that are printed next; empty: none.
        frameworks: Printed last.
    """

    def show(wanted: bool) -> None:
        if wanted:
            needed = import_module("importlib.metadata").requires(distribution) if pattern else None
            matches = [re.match(pattern, text) for text in needed or () if "extra ==" not in text]
            for name in (distribution, *(match[0] for match in matches if match), *frameworks):
                typer.echo(f"{name} {installed_version(name) or 'not installed'}")
            raise typer.Exit

    listed = ", ".join(["its packages", *frameworks])
    several = f"Print the versions of {distribution}, {listed}."
    return typer.Option(
        "--version", is_eager=True, callback=show, help=several if pattern else "Print the version."
    )


@contextmanager
def exit_codes(message: Callable[[Exception], tuple[str, int] | None] = message_of) -> Iterator[None]:
    """Print an error that the user can cause to stderr and exit with its code; other exceptions keep their traceback.

    Args:
        message: Returns the message and the exit code of an error, or None if it is to be raised.

    Raises:
        typer.Exit: with the exit code of the error.
    """
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from interrupt
    except Exception as error:
        found = message(error)
        if found is None:
            raise
        raise typer.Exit(print_error(*found)) from error
