"""`GuardReport`: what is done about each fault in this process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mb_guard.fault import Fault

State = Literal[
    "put right",
    "pending",
    "unknown source",
    "not needed",
    "other version",
    "not installed",
    "refused",
    "to know",
    "off",
]
"""What is done about a fault.

`pending`: put right when its module is imported. `unknown source`: the installed function is not one of those that the
correction is made for, so that it is left as it is. `not needed`: this environment does not have the fault. `other
version`: the installed version is outside the tested bounds, and its module is not imported yet.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultStatus:
    """What is done about one fault in this process."""

    fault: Fault
    state: State
    detail: str = ""
    """Reason, such as the function whose source is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReport:
    """What is done about every fault, with the versions that were found."""

    versions: Mapping[str, str | None]
    statuses: tuple[FaultStatus, ...]

    def count(self, *states: State) -> int:
        """Return how many faults have one of these states."""
        return sum(status.state in states for status in self.statuses)

    def line(self) -> str:
        """Return one line for the log."""
        if all(status.state == "off" for status in self.statuses):
            return "guarded: nothing, because of MB_GUARD"
        right = self.count("put right", "pending")
        unknown = self.count("unknown source")
        known = self.count("to know", "refused", "other version") + unknown
        rest = f" ({unknown} of them in a function that is not known)" if unknown else ""
        return f"guarded: {_faults(right)} put right, {known} to know{rest}; mb-guard doctor lists them"


def _faults(number: int) -> str:
    return f"{number} fault{'' if number == 1 else 's'}"
