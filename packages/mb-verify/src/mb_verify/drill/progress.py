"""Progress of a run while it is recorded: processes, completed steps and their times. No torch."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mb_verify.record.run_record import rank_and_start


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProgress:
    """Progress of one start of a run."""

    processes: Mapping[int, int] = field(default_factory=dict)
    """Rank -> process id, of the ranks that have begun to train."""
    began_at: int | None = None
    """Steps completed before the start; None: no rank has begun to train."""
    completed: Mapping[int, float] = field(default_factory=dict)
    """Step -> time (seconds since the epoch) at which the last rank completed it."""

    @property
    def last_step(self) -> int | None:
        """Newest completed step, or that at which the start began; None: no rank has begun to train."""
        return max(self.completed, default=self.began_at)


def read_progress(folder: Path, *, start: int) -> StartProgress:
    """Return the progress of a start from its record, which may be incomplete or missing."""
    processes: dict[int, int] = {}
    times: dict[int, list[float]] = {}
    began: int | None = None
    for file in folder.glob(f"rank-*.{start}.jsonl"):
        for row in rows_of(file):
            if row["kind"] == "start":
                began = row["step"]
                processes[int(row["values"]["rank"])] = row["process"]
            elif row["kind"] == "step":
                times.setdefault(row["step"], []).append(row["time"])
    completed = {
        step: max(rank_times) for step, rank_times in times.items() if len(rank_times) == len(processes)
    }
    return StartProgress(processes=processes, began_at=began, completed=completed)


def rows_of(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file that is being written; an incomplete last line is left out."""
    for line in file.read_text(encoding="utf-8").split("\n")[:-1]:
        yield json.loads(line)


def steps_lost(starts: Sequence[StartProgress]) -> int:
    """Return the number of steps that were computed again: before each restart, those since its checkpoint."""
    lost, reached = 0, 0
    for start in starts:
        if start.began_at is None:
            continue
        lost += max(0, reached - start.began_at)
        reached = start.last_step or 0
    return lost


def first_completions(starts: Iterable[StartProgress]) -> dict[int, float]:
    """Return for each step the time at which the run completed it for the first time."""
    times: dict[int, float] = {}
    for start in starts:
        for step, moment in sorted(start.completed.items()):
            times.setdefault(step, moment)
    return times


def final_values(folder: Path) -> dict[tuple[int, int], Mapping[str, str]]:
    """Return (step, rank) -> what that step computed in the last start that computed it."""
    newest: dict[tuple[int, int], tuple[int, Mapping[str, str]]] = {}
    for file in folder.glob("rank-*.*.jsonl"):
        rank, start = rank_and_start(file)
        for row in rows_of(file):
            position = (row["step"], rank)
            if row["kind"] == "step" and start >= newest.get(position, (-1, {}))[0]:
                newest[position] = (start, row["values"])
    return {position: values for position, (_, values) in newest.items()}
