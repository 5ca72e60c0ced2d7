"""Commands of the programs of all packages. Requires typer, which the extra `cli` of each package installs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand

from mb_schema.exit_codes import INTERRUPTED, message_of, print_error


class CommandWithExample(TyperCommand):
    """Command whose epilog contains the arguments of an example; help prints them after the name of the program."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the command."""
        arguments, self.epilog = self.epilog, f"Example: {ctx.command_path} {self.epilog}"
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = arguments


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
