"""Errors that report the outcomes of ranks."""

from collections.abc import Sequence

from mb_host.ranks.messages import RankOutcome


class RankFailedError(RuntimeError):
    """A rank raised or died. `outcomes` contains all ranks in the order of `rank_failed_error`."""

    def __init__(self, message: str, *, outcomes: Sequence[RankOutcome]) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)

    @property
    def all_replied(self) -> bool:
        """Whether all functions ended and all processes live, so that the processes can be reused."""
        return all(outcome.state in ("raised", "returned") for outcome in self.outcomes)


class RankTimeoutError(TimeoutError):
    """Ranks were still running at the timeout. `outcomes` contains all ranks, those still running first."""

    def __init__(self, message: str, *, outcomes: Sequence[RankOutcome]) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)


def rank_failed_error(outcomes: Sequence[RankOutcome], *, what: str) -> RankFailedError:
    """Return the error for outcomes of which at least one is a failure.

    Ranks that died come first, then those that raised, each in order of arrival. If a process dies, the other ranks
    raise errors of closed connections, which can arrive before its exit status.

    Args:
        outcomes: outcomes of all ranks, in order of arrival.
        what: name of the function that the ranks ran.
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
    """Return the error for outcomes of which at least one was still running, and none is a failure.

    Args:
        outcomes: outcomes of all ranks.
        what: name of the function that the ranks ran.
        timeout_seconds: time after which ranks that were still running were aborted.
    """
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
