"""Collection of the replies of all ranks, as outcomes or as one error."""

import signal
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import wait

from mb_host.ranks.outcomes import RankOutcome, rank_failed_error, rank_timeout_error
from mb_host.ranks.process import RankProcess

# After the first failure, other ranks may fail within this time: their errors are often more informative.
_GRACE_SECONDS = 2.0
_POLL_SECONDS = 0.05


def gather_outcomes(
    processes: Sequence[RankProcess], *, what: str, timeout_seconds: float
) -> list[RankOutcome]:
    """Return the outcomes of all ranks in order of arrival.

    `what` describes the run in messages. Ranks that do not reply in time are aborted.

    Raises:
        RankFailedError: A rank raised or died.
        RankTimeoutError: No rank failed, and a rank did not reply within `timeout_seconds`.
    """
    outcomes: list[RankOutcome] = []
    pending = list(processes)
    deadline = time.monotonic() + timeout_seconds
    failed = False
    while pending and time.monotonic() < deadline:
        arrived = _arrivals(pending)
        outcomes += arrived
        replied = {outcome.rank for outcome in arrived}
        pending = [process for process in pending if process.rank not in replied]
        if not failed and any(outcome.state != "returned" for outcome in arrived):
            failed = True
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    outcomes += _aborted(pending)
    if failed:
        raise rank_failed_error(outcomes, what=what)
    if pending:
        raise rank_timeout_error(outcomes, what=what, timeout_seconds=timeout_seconds)
    return outcomes


def _arrivals(pending: Iterable[RankProcess]) -> list[RankOutcome]:
    """Wait briefly and return new outcomes."""
    wait([process.connection for process in pending], timeout=_POLL_SECONDS)
    return [outcome for process in pending if (outcome := _outcome(process))]


def _outcome(process: RankProcess) -> RankOutcome | None:
    has_exited = process.exit_code is not None  # before the reply is read: a last reply may arrive in between
    reply = process.reply()
    if reply is not None and reply.kind == "raised":
        summary = f"raised {reply.summary}"
        return RankOutcome(rank=process.rank, state="raised", summary=summary, detail=reply.detail)
    if reply is not None:
        return RankOutcome(rank=process.rank, state="returned", summary="returned", result=reply.payload)
    if has_exited or process.exit_code is not None:
        return RankOutcome(
            rank=process.rank, state="died", summary=_death(process.exit_code or 0), detail=process.stacks()
        )
    return None


def _death(exit_code: int) -> str:
    if exit_code < 0:
        return f"died of {signal.Signals(-exit_code).name}"
    return f"ended its process with exit code {exit_code}"


def _aborted(pending: Sequence[RankProcess]) -> list[RankOutcome]:
    for process in pending:
        process.abort()
    return [
        RankOutcome(
            rank=process.rank,
            state="running",
            summary="was still running, and was aborted here:",
            detail=process.stacks() or "(no stacks available)",
        )
        for process in pending
    ]
