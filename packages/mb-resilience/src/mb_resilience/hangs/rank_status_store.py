"""Statuses of all ranks in a shared store, for hang reports. No torch."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from mb_resilience.hangs.collective_records import GroupCollectives, as_text, from_text
from mb_resilience.hangs.report import RankStatus
from mb_resilience.stops.decision_exchange import KeyValueStore


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """Record of one rank in the store."""

    heartbeat: int
    """Number of records that the rank has written; a rank whose number does not change is unresponsive."""
    heartbeat_seconds: float
    """Time until the rank writes the next record."""
    status: RankStatus


class RankStatusStore:
    """Records of the ranks of a run in a store.

    Args:
        store: store shared by all ranks; None: nothing is written, and no rank is visible.
        rank: rank of this process.
        world_size: number of ranks.
        attempt: name of this start of the run; records of other attempts are ignored.
    """

    def __init__(self, store: KeyValueStore | None, *, rank: int, world_size: int, attempt: str) -> None:
        self._store = store
        self._rank = rank
        self._prefix = f"mb_resilience/hang/{attempt}"
        self.ranks = range(world_size) if store is not None else range(rank, rank + 1)
        """Ranks whose records are read; only this rank without a store."""

    def write(self, record: StatusRecord) -> None:
        """Replace the record of this rank."""
        if self._store is None:
            return
        # A failure is reported by the reader, when it matters: at the end of a run the rank that serves the store may
        # exit first, and the failed writes of the other ranks are expected.
        with suppress(OSError, RuntimeError):
            fields = [record.heartbeat, record.heartbeat_seconds, asdict(record.status)]
            self._store.set(f"{self._prefix}/{self._rank}", json.dumps(fields))

    def read(self) -> dict[int, StatusRecord]:
        """Return the record of each rank that has written one.

        Raises:
            OSError, RuntimeError: the store does not respond.
        """
        records: dict[int, StatusRecord] = {}
        if self._store is None:
            return records
        for rank in self.ranks:
            key = f"{self._prefix}/{rank}"
            if self._store.check([key]):
                heartbeat, heartbeat_seconds, reported = json.loads(self._store.get(key))
                status = RankStatus(**{**reported, "frames": tuple(reported["frames"])})
                records[rank] = StatusRecord(
                    heartbeat=heartbeat, heartbeat_seconds=heartbeat_seconds, status=status
                )
        return records

    def write_collectives(self, collectives: Sequence[GroupCollectives] | None) -> None:
        """Replace the collectives of this rank; None: it has no record."""
        if self._store is None or collectives is None:
            return
        with suppress(OSError, RuntimeError):  # reported by the reader, as above
            self._store.set(self._collectives_key(self._rank), as_text(collectives))

    def read_collectives(self) -> dict[int, tuple[GroupCollectives, ...]]:
        """Return the collectives of each rank that has written them.

        Raises:
            OSError, RuntimeError: the store does not respond.
        """
        if self._store is None:
            return {}
        keys = {rank: self._collectives_key(rank) for rank in self.ranks}
        return {
            rank: from_text(self._store.get(key)) for rank, key in keys.items() if self._store.check([key])
        }

    def _collectives_key(self, rank: int) -> str:
        return f"{self._prefix}/collectives/{rank}"
