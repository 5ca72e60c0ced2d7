"""Exceptions of this package: one base class; each also subclasses the builtin exception that a caller would catch."""

from mb_schema.errors import PackageError
from mb_schema.rules import RuleError


class ResilienceError(PackageError):
    """Base class of the errors of this package: either bad input or a failure."""


class SectionError(ResilienceError, RuleError):
    """A section violates rules. `problems` contains all of them, and the message has a line for each."""


class StopSetupError(ResilienceError, ValueError):
    """Invalid arguments of `AgreedStop`, with which the ranks cannot agree."""

    internal = True


class StopOrderError(ResilienceError, RuntimeError):
    """`AgreedStop` is called with a step that does not follow the previous one."""

    internal = True


class Rank0TimeoutError(ResilienceError, TimeoutError):
    """Rank 0 has not ended a step within `timeout_seconds` after this rank ended a later one."""


class FaultError(ResilienceError, ValueError):
    """Invalid settings of a simulated fault."""


class NoMonitorError(ResilienceError, RuntimeError):
    """Fault tolerance is enabled, but no monitor is running."""


class NVRxDetectorError(ResilienceError, RuntimeError):
    """NVRx's detector cannot work in this process."""


class AttemptError(ResilienceError, RuntimeError):
    """Error of an attempt as text, without the objects that the frames of its traceback refer to.

    NVRx copies the exception of the training function (`dataclasses.asdict`), which fails for many classes, and keeps
    it with its frames, model and optimizer until the next fault.
    """


class RestartSetupError(ResilienceError, RuntimeError):
    """In-process restarts cannot be set up."""


class RestartLimitError(ResilienceError, RuntimeError):
    """A run with in-process restarts ended with a fault: its limits are reached, or a restart cannot help."""


class SwitchPortError(ResilienceError, OSError):
    """The port of the switch cannot be opened."""
