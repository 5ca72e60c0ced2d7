"""Faults of ranks that interrupt an attempt: their description, and which of several is the first cause. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FAULT_KINDS: Mapping[str, str] = {
    "EXCEPTION": "raised",
    "BASE_EXCEPTION": "left the run",
    "SOFT_TIMEOUT": "made no progress for soft_timeout",
    "HARD_TIMEOUT": "made no progress for hard_timeout, and was killed",
    "TERMINATED": "was killed, or its process ended",
    "UNRESPONSIVE": "sent no heartbeat for heartbeat_timeout",
    "MONITOR_PROCESS_EXCEPTION": "lost its monitoring process",
}
"""Kind of NVRx's record -> predicate of a sentence about the rank. A base exception is one such as SystemExit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFault:
    """Reason why an attempt was interrupted."""

    rank: int
    """Initial rank of the process, as its launcher numbered it."""
    kind: str
    """Kind of NVRx's record, such as "EXCEPTION", "TERMINATED" or "SOFT_TIMEOUT"."""
    error: str | None = None
    """Type and message of the exception that the process raised; None for another fault."""

    def __str__(self) -> str:
        """Return a sentence without its period."""
        what = FAULT_KINDS.get(self.kind, self.kind.lower().replace("_", " "))
        return f"rank {self.rank} {what}" + ("" if self.error is None else f" {self.error}")


COLLECTIVE_ERRORS = (
    "gloo/",
    "NCCL",
    "Connection closed by peer",
    "Connection reset by peer",
    "DistStoreError",
)
"""Parts of the messages of errors that a collective raises after a fault of another rank."""


def is_consequence(error: str) -> bool:
    """Return whether a message is that of a failed collective, whose cause is a fault of another rank."""
    return any(part in error for part in COLLECTIVE_ERRORS)


def sorted_faults(faults: Sequence[RankFault]) -> tuple[RankFault, ...]:
    """Return faults with the likely first cause first, one per rank: dead ranks, then errors, then their consequences.

    When a rank dies or raises, the collectives of its partners raise, too, or wait until their soft timeout; both are
    often recorded earlier than the fault itself. Of several faults of a rank, the first in this order is kept.
    """

    def order(fault: RankFault) -> int:
        if fault.kind in ("HARD_TIMEOUT", "TERMINATED", "UNRESPONSIVE", "MONITOR_PROCESS_EXCEPTION"):
            return 0
        consequence = fault.error is not None and is_consequence(fault.error)
        return 2 if consequence or fault.kind == "SOFT_TIMEOUT" else 1

    by_rank: dict[int, RankFault] = {}
    for fault in sorted(faults, key=order):
        by_rank.setdefault(fault.rank, fault)
    return tuple(by_rank.values())
