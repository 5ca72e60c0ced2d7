"""Outcomes of ranks, and the errors that report them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """Outcome of one rank.

    `state`: the function returned or raised, the process died, or it was still running and was aborted. `summary` is
    one line that completes "rank 1 ..."; `detail` is a traceback, the stacks of all threads, or empty.
    """

    rank: int
    state: Literal["returned", "raised", "died", "running"]
    summary: str
    detail: str = ""
    result: bytes = b""


class RankFailedError(RuntimeError):
    """A rank raised or died. `outcomes` contains all ranks, the first failure first."""

    def __init__(self, message: str, *, outcomes: Sequence[RankOutcome]) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)

    @property
    def all_replied(self) -> bool:
        """Whether every rank raised or returned, so that all processes can be reused."""
        return all(outcome.state in ("raised", "returned") for outcome in self.outcomes)


class RankTimeoutError(TimeoutError):
    """Ranks were still running at the timeout. `outcomes` contains all ranks, those still running first."""

    def __init__(self, message: str, *, outcomes: Sequence[RankOutcome]) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)


def rank_failed_error(outcomes: Sequence[RankOutcome], *, what: str) -> RankFailedError:
    """Return the error for outcomes in order of arrival, at least one of which is a failure.

    Ranks that died come first: their peers raise within microseconds that a connection is closed, which may arrive
    earlier than the exit status.
    """
    order = ("died", "raised")
    ordered = sorted(
        outcomes, key=lambda each: order.index(each.state) if each.state in order else len(order)
    )
    headline = f"run_ranks: rank {ordered[0].rank} of {len(ordered)} {ordered[0].summary}, running {what}."
    return RankFailedError(_message(headline, ordered), outcomes=ordered)


def rank_timeout_error(
    outcomes: Sequence[RankOutcome], *, what: str, timeout_seconds: float
) -> RankTimeoutError:
    """Return the error for outcomes of which at least one was still running, and none is a failure."""
    ordered = sorted(outcomes, key=lambda outcome: (outcome.state != "running", outcome.rank))
    hanging = [str(outcome.rank) for outcome in ordered if outcome.state == "running"]
    headline = (
        f"run_ranks: {what} did not return within {timeout_seconds:g} s on rank {', '.join(hanging)} of "
        f"{len(ordered)}; the stacks are below. Increase timeout_seconds if this is not a hang."
    )
    return RankTimeoutError(_message(headline, ordered), outcomes=ordered)


def _message(headline: str, outcomes: Sequence[RankOutcome]) -> str:
    parts = [headline]
    for outcome in outcomes:
        parts.append(f"--- rank {outcome.rank} {outcome.summary}")
        if outcome.detail:
            parts.append(outcome.detail.rstrip())
    return "\n".join(parts)
