"""Claim of one rank to make the report of a hang, over a store. No torch.

The value of the key is the rank that makes the report, and its state. One `compare_set` takes it, so that of many ranks
exactly one does; a rank that leaves it to another one reads the claim at each heartbeat until the report is made.
"""

from typing import Literal, NamedTuple, Protocol

from mb_resilience.stops.decision_exchange import KeyValueStore

ClaimState = Literal["claimed", "reported", "released"]


class HangStore(KeyValueStore, Protocol):
    """Store of hang reports, such as `torch.distributed.Store`."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return the values of keys that exist."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Replace the expected value, "" for none, and return the value after it."""


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
