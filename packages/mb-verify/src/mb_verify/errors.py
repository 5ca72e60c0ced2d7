"""Errors of this package."""

from typing import ClassVar

from mb_schema.errors import PackageError


class VerificationError(PackageError, RuntimeError):
    """A run of the proof failed, ended early or recorded nothing, so that there is nothing to compare.

    Base class of the errors of this package.
    """


class InterruptionError(VerificationError, ValueError):
    """An interruption is impossible, such as one after the last step. `field` names the field of `Interruption`."""

    bad_input: ClassVar[bool] = True

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        """Return the field and its problem."""
        return f"{self.field}: {self.problem}"


class RecordingRequestError(VerificationError, ValueError):
    """The environment variables that request a recording are malformed."""

    bad_input: ClassVar[bool] = True


class DrillError(VerificationError, ValueError):
    """A drill was requested that cannot be made, such as one of an unknown fault."""

    bad_input: ClassVar[bool] = True


class InjectedFaultError(VerificationError):
    """The exception that a drill raises in a rank."""


class ReplayRequestError(VerificationError, ValueError):
    """A replay is impossible, such as one of a step that the run has not recorded."""

    bad_input: ClassVar[bool] = True
