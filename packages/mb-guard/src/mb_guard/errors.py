"""Errors of this package."""

from typing import ClassVar


class GuardError(RuntimeError):
    """Base class of the errors of this package."""

    bad_input: ClassVar[bool] = True
    """The request or the configuration is at fault, so that a program exits with 2."""
    internal: ClassVar[bool] = False
    """If True, the calling code is wrong or an invariant is broken: a program prints the traceback."""


class UnknownFaultError(GuardError, KeyError):
    """There is no fault of that id."""

    def __str__(self) -> str:
        """Return the message without the quotes of a KeyError."""
        return str(self.args[0])


class KnownFaultError(GuardError, ValueError):
    """The configuration meets a known fault that is refused, because no correction exists."""


class UnreadableSettingsError(GuardError, ValueError):
    """A script or configuration cannot be read."""
