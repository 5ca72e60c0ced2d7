"""What ranks share for hang reports, in a store: the status of each, and the claim of one to make the report. No torch.

The value of the claim's key is the rank that makes the report, and its state. One `compare_set` takes it, so that of
many ranks exactly one does; a rank that leaves it to another one reads the claim at each heartbeat until the report is
made.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, Protocol

from mb_resilience.hangs.collective_records import GroupCollectives, as_text, from_text
from mb_resilience.hangs.report import RankStatus
from mb_resilience.stops.decision_exchange import KeyValueStore

ClaimState = Literal["claimed", "reported", "released"]

KEYS_PER_READ = 1000
"""Keys in one request: a TCPStore serves no other rank meanwhile, for a time that grows with their square."""


class HangStore(KeyValueStore, Protocol):
    """Store of hang reports, such as `torch.distributed.Store`."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return the values of keys that exist."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Replace the expected value, "" for none, and return the value after it."""


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

    def __init__(self, store: HangStore | None, *, rank: int, world_size: int, attempt: str) -> None:
        self._store = store
        self._rank = rank
        self._prefix = f"mb_resilience/hang/{attempt}"
        self.claim = ReportClaim(store, key=f"{self._prefix}/reporter", rank=rank)
        """Claim to the report on a hang."""
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

    def read(self, ranks: Sequence[int] | None = None) -> dict[int, StatusRecord]:
        """Return the record of each rank that has written one.

        Args:
            ranks: ranks whose records are read; None: all.

        Raises:
            OSError, RuntimeError: the store does not respond.
        """
        records: dict[int, StatusRecord] = {}
        ranks = self.ranks if ranks is None else ranks
        for rank, value in self._read({rank: f"{self._prefix}/{rank}" for rank in ranks}).items():
            heartbeat, heartbeat_seconds, reported = json.loads(value)
            status = RankStatus(**{**reported, "frames": tuple(reported["frames"])})
            records[rank] = StatusRecord(
                heartbeat=heartbeat, heartbeat_seconds=heartbeat_seconds, status=status
            )
        return records

    def _read(self, keys: dict[int, str]) -> dict[int, bytes]:
        """Return the values of the keys that exist."""
        found: dict[int, bytes] = {}
        ranks = list(keys)
        for begin in range(0, len(ranks), KEYS_PER_READ):
            existing = self._existing({rank: keys[rank] for rank in ranks[begin : begin + KEYS_PER_READ]})
            if existing and self._store is not None:
                found |= zip(existing, self._store.multi_get(list(existing.values())), strict=True)
        return found

    def _existing(self, keys: dict[int, str]) -> dict[int, str]:
        """Return the keys that exist, in few requests if nearly all do: reading a missing one would block."""
        if self._store is None or not keys or self._store.check(list(keys.values())):
            return {} if self._store is None else keys
        if len(keys) == 1:
            return {}
        items = list(keys.items())
        half = len(items) // 2
        return self._existing(dict(items[:half])) | self._existing(dict(items[half:]))

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
        keys = {rank: self._collectives_key(rank) for rank in self.ranks}
        return {rank: from_text(value) for rank, value in self._read(keys).items()}

    def _collectives_key(self, rank: int) -> str:
        return f"{self._prefix}/collectives/{rank}"


class Claim(NamedTuple):
    """Value of a claim."""

    rank: int
    """Rank that makes the report."""
    state: ClaimState
    """"reported" once it is made; "released" once the rank has made progress again."""


class ReportClaim:
    """Claim to the report on one run, which one rank at a time holds.

    Args:
        store: store shared by all ranks; None for a single rank, which holds every claim.
        key: key of the claim.
        rank: rank of this process.
    """

    def __init__(self, store: HangStore | None, *, key: str, rank: int) -> None:
        self._store = store
        self._key = key
        self._rank = rank
        self._value = ""

    def take(self) -> Claim:
        """Take the claim if no rank holds it, and return it.

        Raises:
            OSError, RuntimeError: the store does not respond.
        """
        claim = self._exchange("")
        return self.take_over(claim) if claim.state == "released" else claim

    def take_over(self, lost: Claim) -> Claim:
        """Take the claim of a rank that can no longer report, unless another rank has taken it; return the claim.

        Raises:
            OSError, RuntimeError: the store does not respond.
        """
        return self._exchange(_encode(lost))

    def set_state(self, state: ClaimState) -> None:
        """Change the state of the claim that this rank holds; without effect if another rank has taken it.

        Raises:
            OSError, RuntimeError: the store does not respond.
        """
        if self._value:
            held, self._value = self._value, "" if state == "released" else _encode(Claim(self._rank, state))
            if self._store is not None:
                self._store.compare_set(self._key, held, _encode(Claim(self._rank, state)))

    def _exchange(self, expected: str) -> Claim:
        own = Claim(self._rank, "claimed")
        found = (
            own
            if self._store is None
            else _decode(self._store.compare_set(self._key, expected, _encode(own)))
        )
        if found == own:
            self._value = _encode(own)
        return found


def _encode(claim: Claim) -> str:
    return f"{claim.rank} {claim.state}"


def _decode(value: bytes) -> Claim:
    rank, state = value.decode().split()
    return Claim(int(rank), state)  # type: ignore[arg-type]  # written by `_encode`
