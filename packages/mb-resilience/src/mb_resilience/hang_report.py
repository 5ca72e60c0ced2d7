"""Which rank hangs: what each rank tells of itself, who is to blame, and the report on it. No torch, no clock."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rank is, as it told itself."""

    section: str
    """What it is doing."""
    step: int | None = None
    """In which step; None: in none."""
    seconds: float = 0.0
    """How long it has not said anything else."""
    places: tuple[str, ...] = ()
    """Where its main thread is: `file:line function`, the innermost first."""
    left: str | None = None
    """Why it has left the run; None: it is in it."""
    silent: bool = False
    """Whether its process has stopped telling; then the rest is what it told last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Ranks that the others seem to wait for."""

    ranks: tuple[int, ...]
    reason: str


Standings = Mapping[int, Standing | None]
"""Of all ranks; None for one that never told anything."""


def find_suspects(standings: Standings) -> Suspects | None:
    """Return the ranks that differ from the others in what tells most; None where nothing tells them apart."""
    known = {rank: standing for rank, standing in standings.items() if standing is not None}
    found = _gone(known) or _silent(standings) or _behind(known) or _elsewhere(known) or _working(known)
    return found or _odd_ones(known, lambda standing: standing.places[:1], "at another place of the program")


def _gone(known: Mapping[int, Standing]) -> Suspects | None:
    ranks = tuple(rank for rank, standing in known.items() if standing.left is not None)
    return Suspects(ranks=ranks, reason=f"left the run ({known[ranks[0]].left})") if ranks else None


def _silent(standings: Standings) -> Suspects | None:
    ranks = tuple(rank for rank, standing in standings.items() if standing is None or standing.silent)
    reason = "told nothing more: stopped, dead, or on a machine out of reach"
    return Suspects(ranks=ranks, reason=reason) if 0 < len(ranks) < len(standings) else None


def _behind(known: Mapping[int, Standing]) -> Suspects | None:
    steps = [standing.step for standing in known.values() if standing.step is not None]
    if not steps or min(steps) == max(steps):
        return None
    ranks = tuple(rank for rank, standing in known.items() if standing.step == min(steps))
    return Suspects(ranks=ranks, reason=f"is in step {min(steps)} while others are in step {max(steps)}")


def _elsewhere(known: Mapping[int, Standing]) -> Suspects | None:
    return _odd_ones(known, lambda standing: standing.section, "in another section")


def _working(known: Mapping[int, Standing]) -> Suspects | None:
    ranks = tuple(rank for rank, standing in known.items() if not waits(standing))
    reason = "is not in torch.distributed, where the others wait"
    return Suspects(ranks=ranks, reason=reason) if 0 < len(ranks) < len(known) else None


def waits(standing: Standing) -> bool:
    """Say whether a rank is within torch's distributed functions, as one that waits for others is."""
    return any("torch/distributed" in place for place in standing.places)


def _odd_ones(
    known: Mapping[int, Standing], key: Callable[[Standing], Hashable], what: str
) -> Suspects | None:
    """Return the ranks outside of the largest group; None where all are in one, or two are the largest."""
    groups = defaultdict(list)
    for rank, standing in known.items():
        groups[key(standing)].append(rank)
    sizes = sorted(map(len, groups.values()))
    if len(sizes) == 1 or sizes[-1:] == sizes[-2:-1]:
        return None
    ranks = sorted(rank for ranks in groups.values() if len(ranks) < sizes[-1] for rank in ranks)
    return Suspects(ranks=tuple(ranks), reason=f"is {what}") if ranks else None


def write_report(
    standings: Mapping[int, Standing | None], *, seconds: float, stacks: str | None = None
) -> str:
    """Return the report: whom to look at, and a line for each group of ranks that are at the same place.

    Args:
        standings: of all ranks.
        seconds: how long there was no progress.
        stacks: where the whole stacks are.
    """
    suspects = find_suspects(standings)
    head = f"no progress for {seconds:.0f} s"
    if suspects is not None:
        blamed = "rank" if len(suspects.ranks) == 1 else "ranks"
        head += f": look at {blamed} {listed(suspects.ranks)}, which {suspects.reason}"
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, standing in sorted(standings.items()):
        groups[_described(standing)].append(rank)
    lines = [
        f"  {'rank' if len(ranks) == 1 else 'ranks'} {listed(ranks)}: {text}"
        for (text,), ranks in groups.items()
    ]
    return "\n".join([head, *lines, *([] if stacks is None else [f"  whole stacks: {stacks}"])])


def _described(standing: Standing | None) -> tuple[str]:
    if standing is None:
        return ("never told where it is",)
    if standing.left is not None:
        return (f"left the run: {standing.left}",)
    step = "" if standing.step is None else f" {standing.step}"
    where = " < ".join(standing.places)
    last = "last told: " if standing.silent else ""
    return (f"{last}{standing.section}{step}{', at ' if where else ''}{where}",)


def listed(ranks: Sequence[int]) -> str:
    """Return ranks in ascending order as `0-3,5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
