"""Which rank hangs: what each rank tells of itself, who is to blame, and the report on it. No torch, no clock."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """Where a rank is, as it told itself."""

    section: str
    """What it is doing."""
    step: int | None = None
    """In which step; None: in none."""
    seconds: float = 0.0
    """How long it has not said anything else."""
    frames: tuple[str, ...] = ()
    """Where its main thread is: `file:line function`, the innermost first."""
    exit_reason: str | None = None
    """Why it has left the run; None: it is in it."""
    unresponsive: bool = False
    """Whether its process has stopped telling; then the rest is what it told last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectRanks:
    """Ranks that the others seem to wait for."""

    ranks: tuple[int, ...]
    reason: str


RankStatuses = Mapping[int, RankStatus | None]
"""Of all ranks; None for one that never told anything."""


def find_suspects(statuses: RankStatuses) -> SuspectRanks | None:
    """Return the ranks that differ from the others in what tells most; None where nothing tells them apart."""
    known = {rank: status for rank, status in statuses.items() if status is not None}
    found = (
        _exited(known)
        or _unresponsive(statuses)
        or _behind(known)
        or _in_other_section(known)
        or _outside_distributed(known)
    )
    return found or _outliers(known, lambda status: status.frames[:1], "at another place of the program")


def _exited(known: Mapping[int, RankStatus]) -> SuspectRanks | None:
    ranks = tuple(rank for rank, status in known.items() if status.exit_reason is not None)
    return (
        SuspectRanks(ranks=ranks, reason=f"left the run ({known[ranks[0]].exit_reason})") if ranks else None
    )


def _unresponsive(statuses: RankStatuses) -> SuspectRanks | None:
    ranks = tuple(rank for rank, status in statuses.items() if status is None or status.unresponsive)
    reason = "told nothing more: stopped, dead, or on a machine out of reach"
    return SuspectRanks(ranks=ranks, reason=reason) if 0 < len(ranks) < len(statuses) else None


def _behind(known: Mapping[int, RankStatus]) -> SuspectRanks | None:
    steps = [status.step for status in known.values() if status.step is not None]
    if not steps or min(steps) == max(steps):
        return None
    ranks = tuple(rank for rank, status in known.items() if status.step == min(steps))
    return SuspectRanks(ranks=ranks, reason=f"is in step {min(steps)} while others are in step {max(steps)}")


def _in_other_section(known: Mapping[int, RankStatus]) -> SuspectRanks | None:
    return _outliers(known, lambda status: status.section, "in another section")


def _outside_distributed(known: Mapping[int, RankStatus]) -> SuspectRanks | None:
    ranks = tuple(rank for rank, status in known.items() if not is_in_distributed(status))
    reason = "is not in torch.distributed, where the others wait"
    return SuspectRanks(ranks=ranks, reason=reason) if 0 < len(ranks) < len(known) else None


def is_in_distributed(status: RankStatus) -> bool:
    """Say whether a rank is within torch's distributed functions, as one that waits for others is."""
    return any("torch/distributed" in place for place in status.frames)


def _outliers(
    known: Mapping[int, RankStatus], key: Callable[[RankStatus], Hashable], what: str
) -> SuspectRanks | None:
    """Return the ranks outside of the largest group; None where all are in one, or two are the largest."""
    groups = defaultdict(list)
    for rank, status in known.items():
        groups[key(status)].append(rank)
    sizes = sorted(map(len, groups.values()))
    if len(sizes) == 1 or sizes[-1:] == sizes[-2:-1]:
        return None
    ranks = sorted(rank for ranks in groups.values() if len(ranks) < sizes[-1] for rank in ranks)
    return SuspectRanks(ranks=tuple(ranks), reason=f"is {what}") if ranks else None


def format_report(
    statuses: Mapping[int, RankStatus | None], *, seconds: float, stacks: str | None = None
) -> str:
    """Return the report: whom to look at, and a line for each group of ranks that are at the same place.

    Args:
        statuses: of all ranks.
        seconds: how long there was no progress.
        stacks: where the whole stacks are.
    """
    suspects = find_suspects(statuses)
    head = f"no progress for {seconds:.0f} s"
    if suspects is not None:
        blamed = "rank" if len(suspects.ranks) == 1 else "ranks"
        head += f": look at {blamed} {format_ranks(suspects.ranks)}, which {suspects.reason}"
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, status in sorted(statuses.items()):
        groups[_describe(status)].append(rank)
    lines = [
        f"  {'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks)}: {text}"
        for (text,), ranks in groups.items()
    ]
    return "\n".join([head, *lines, *([] if stacks is None else [f"  whole stacks: {stacks}"])])


def _describe(status: RankStatus | None) -> tuple[str]:
    if status is None:
        return ("never told where it is",)
    if status.exit_reason is not None:
        return (f"left the run: {status.exit_reason}",)
    step = "" if status.step is None else f" {status.step}"
    where = " < ".join(status.frames)
    last = "last told: " if status.unresponsive else ""
    return (f"{last}{status.section}{step}{', at ' if where else ''}{where}",)


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in ascending order as `0-3,5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
