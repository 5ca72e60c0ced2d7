"""Errors of this package."""

from typing import ClassVar

from mb_schema.errors import PackageError


class GuardError(PackageError, RuntimeError):
    """Base class of the errors of this package."""

    bad_input: ClassVar[bool] = True
    """The request or the configuration is at fault, so that a program exits with 2."""


class UnknownFaultError(GuardError, KeyError):
    """There is no fault of that id."""

    def __str__(self) -> str:
        """Return the message without the quotes of a KeyError."""
        return str(self.args[0])


class KnownFaultError(GuardError, ValueError):
    """The configuration meets a known fault that is refused, because no correction exists."""


class UnreadableSettingsError(GuardError, ValueError):
    """A script or configuration cannot be read."""


class TokenCountError(GuardError, ValueError):
    """A loss function returns another number of tokens than its loss masks hold."""
