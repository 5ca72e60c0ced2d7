"""Report on hanging ranks: status of each rank, detection of suspects, and formatting. No torch, no clock."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

REPORT_HEAD = "no progress for"
"""First words of a report."""
SHOWN_FRAMES = 4
"""Number of frames of a stack in a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """Position of a rank in the run, as reported by the rank itself."""

    section: str
    """Section of the run, such as "step"."""
    step: int | None = None
    """Step number; None outside of steps."""
    seconds: float = 0.0
    """Time since the last progress."""
    frames: tuple[str, ...] = ()
    """Stack of the main thread as `file:line function`, innermost first."""
    exit_reason: str | None = None
    """Reason why the rank left the run; None while it runs."""
    unresponsive: bool = False
    """Whether the process has stopped sending heartbeats; the other fields are then the last ones reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectRanks:
    """Ranks for which the other ranks appear to wait."""

    ranks: tuple[int, ...]
    reason: str
    """Difference from the other ranks, as the end of a sentence such as "check rank 3, which ..."."""


RankStatuses = Mapping[int, RankStatus | None]
"""Rank to status, for all ranks; None for a rank that has never reported."""


def find_suspects(statuses: RankStatuses) -> SuspectRanks | None:
    """Return the ranks that differ from the others by the strongest criterion; None if no criterion applies."""
    reported = {rank: status for rank, status in statuses.items() if status is not None}
    # From the strongest evidence to the weakest: a rank that has exited explains a hang better than its stack.
    return (
        _exited(reported)
        or _unresponsive(statuses)
        or _behind(reported)
        or _outliers(reported, lambda status: status.section, "in another section")
        or _outside_distributed(reported)
        or _outliers(reported, lambda status: status.frames[:1], "at another line of the program")
    )


def _exited(reported: Mapping[int, RankStatus]) -> SuspectRanks | None:
    ranks = tuple(rank for rank, status in reported.items() if status.exit_reason is not None)
    return (
        SuspectRanks(ranks=ranks, reason=f"left the run ({reported[ranks[0]].exit_reason})")
        if ranks
        else None
    )


def _unresponsive(statuses: RankStatuses) -> SuspectRanks | None:
    ranks = tuple(rank for rank, status in statuses.items() if status is None or status.unresponsive)
    verb = "sends" if len(ranks) == 1 else "send"
    reason = f"{verb} no heartbeats: stopped, dead, or on an unreachable machine"
    return SuspectRanks(ranks=ranks, reason=reason) if 0 < len(ranks) < len(statuses) else None


def _behind(reported: Mapping[int, RankStatus]) -> SuspectRanks | None:
    steps = [status.step for status in reported.values() if status.step is not None]
    if not steps or min(steps) == max(steps):
        return None
    ranks = tuple(rank for rank, status in reported.items() if status.step == min(steps))
    return SuspectRanks(
        ranks=ranks, reason=f"{_be(ranks)} in step {min(steps)} while others are in step {max(steps)}"
    )


def _outside_distributed(reported: Mapping[int, RankStatus]) -> SuspectRanks | None:
    ranks = tuple(rank for rank, status in reported.items() if not is_in_distributed(status))
    reason = f"{_be(ranks)} not in torch.distributed, where the others wait"
    return SuspectRanks(ranks=ranks, reason=reason) if 0 < len(ranks) < len(reported) else None


def is_in_distributed(status: RankStatus) -> bool:
    """Return whether a rank is inside torch.distributed, as a rank that waits for others is."""
    return any("torch/distributed" in frame for frame in status.frames)


def _outliers(
    reported: Mapping[int, RankStatus], key: Callable[[RankStatus], Hashable], what: str
) -> SuspectRanks | None:
    """Return the ranks outside of the largest group; None if there is one group, or no single largest group."""
    groups = defaultdict(list)
    for rank, status in reported.items():
        groups[key(status)].append(rank)
    sizes = sorted(map(len, groups.values()))
    if len(sizes) == 1 or sizes[-1:] == sizes[-2:-1]:
        return None
    ranks = sorted(rank for ranks in groups.values() if len(ranks) < sizes[-1] for rank in ranks)
    return SuspectRanks(ranks=tuple(ranks), reason=f"{_be(ranks)} {what}") if ranks else None


def _be(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def format_report(
    statuses: Mapping[int, RankStatus | None],
    *,
    seconds: float,
    collectives: Sequence[str] = (),
    stacks: str | None = None,
) -> str:
    """Return the report: the suspects, and one line per group of ranks with the same status.

    Args:
        statuses: statuses of all ranks.
        seconds: time without progress.
        collectives: lines on collectives that some ranks have not called.
        stacks: path of the files with the full stacks.
    """
    suspects = find_suspects(statuses)
    head = f"{REPORT_HEAD} {seconds:.0f} s"
    if suspects is not None:
        noun = "rank" if len(suspects.ranks) == 1 else "ranks"
        head += f": check {noun} {format_ranks(suspects.ranks)}, which {suspects.reason}"
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, status in sorted(statuses.items()):
        groups[_describe(status)].append(rank)
    lines = [
        f"  {'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks)}: {text}"
        for text, ranks in groups.items()
    ]
    lines += [f"  collectives: {line}" for line in collectives]
    return "\n".join([head, *lines, *([] if stacks is None else [f"  full stacks: {stacks}"])])


def _describe(status: RankStatus | None) -> str:
    if status is None:
        return "has never reported"
    if status.exit_reason is not None:
        return f"left the run: {status.exit_reason}"
    step = "" if status.step is None else f" {status.step}"
    where = " < ".join(status.frames)
    last = "last reported: " if status.unresponsive else ""
    return f"{last}{status.section}{step}{', at ' if where else ''}{where}"


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in ascending order as `0-3,5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def innermost_frames(frame: FrameType | None) -> tuple[str, ...]:
    """Return the innermost frames of a stack as `file:line function`."""
    frames: list[str] = []
    while frame is not None and len(frames) < SHOWN_FRAMES:
        path = Path(frame.f_code.co_filename)
        frames.append(f"{'/'.join(path.parts[-3:])}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(frames)
