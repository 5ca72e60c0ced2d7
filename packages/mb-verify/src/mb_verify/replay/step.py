"""Replay of a recorded step: the run again from the checkpoint before it, compared with its metrics. No torch.

Nothing is written into the run's folder. The replay is a run of its own that loads a checkpoint of the first one, makes
the steps up to the requested one, and ends. What it computed is compared with metrics.jsonl bit for bit, which shows
that it is the same step; `tensor_norms.jsonl` of the replay then has the norms of all tensors.
"""

import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mb_schema.json_rows import parse_row, step_of_row
from mb_verify.errors import ReplayRequestError, VerificationError

METRICS, EVENTS, TENSOR_NORMS = "metrics.jsonl", "events.jsonl", "tensor_norms.jsonl"
WORLD_SIZE, WORLD_SIZE_OF_START = "world-size", "world_size"
"""Number of processes in a row of the metrics at the end of a log interval, and in the event of a start."""

_COMPUTED = re.compile(
    r"loss|grad-norm|learning-rate|num-zeros|params-norm|^samples vs|^batch-size|attention"
)
"""Names of metrics that a step computes, unlike times, throughput and memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """Steps of a run that are made again."""

    step: int
    """The requested step, the last one that is made."""
    start: int
    """Step of the checkpoint that is loaded; 0: the run is made from its beginning."""
    processes: int
    """Processes of the run when it made the step."""
    recorded: Mapping[int, Mapping[str, Any]]
    """Step -> metrics of the run, for each step that is made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDifference:
    """Metric whose value in the replay differs."""

    step: int
    name: str
    recorded: object
    replayed: object

    def __str__(self) -> str:
        """Return the metric with both values."""
        return f"{self.name}, step {self.step}: {self.recorded!r} recorded, {self.replayed!r} in the replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of a replay."""

    plan: ReplayPlan
    seconds: float
    names: tuple[str, ...]
    """Metrics that were compared."""
    differences: tuple[MetricDifference, ...]
    """Metrics that differ, in the order of the steps."""
    tensor_norms: Mapping[int, Mapping[str, Any]]
    """Step -> norms of its tensors, as `tensor_norms.jsonl` has them."""


def plan_replay(run: Path, step: int, *, checkpoints: Collection[int]) -> ReplayPlan:
    """Return the steps that a replay makes, from the newest checkpoint before the requested step.

    Args:
        run: Run folder, with metrics.jsonl.
        step: Number of the step, from 1.
        checkpoints: Steps of the intact checkpoints of the run.

    Raises:
        ReplayRequestError: The run has not recorded the step, or not each step since that checkpoint.
    """
    rows = {row["step"]: row for row in read_rows(run / METRICS) if "grad-norm" in row}
    if step not in rows:
        recorded = f"it has recorded steps {min(rows)} to {max(rows)}" if rows else "it has recorded no step"
        raise ReplayRequestError(f"{run}: has no step {step}; {recorded}. Give another --step.")
    start = max((number for number in checkpoints if number < step), default=0)
    steps = range(start + 1, step + 1)
    missing = [number for number in steps if number not in rows]
    if missing:
        raise ReplayRequestError(
            f"{run / METRICS}: has no row of step {missing[0]}, which is made again from the checkpoint of step "
            f"{start}. Give a step before it."
        )
    return ReplayPlan(
        step=step,
        start=start,
        processes=_processes(run, rows, step),
        recorded={number: rows[number] for number in steps},
    )


def _processes(run: Path, rows: Mapping[int, Mapping[str, Any]], step: int) -> int:
    """Return the processes that made a step: of the start before it, otherwise of the next row with their number."""
    events = read_rows(run / EVENTS) if (run / EVENTS).exists() else ()
    starts = [event for event in events if WORLD_SIZE_OF_START in event and event["step"] < step]
    if starts:
        return int(starts[-1][WORLD_SIZE_OF_START])
    rows_with_size = [row for row in rows.values() if WORLD_SIZE in row]
    later = (row for row in rows_with_size if row["step"] >= step)
    return int(next(later, rows_with_size[-1] if rows_with_size else {WORLD_SIZE: 1})[WORLD_SIZE])


def run_replay(
    plan: ReplayPlan, command: Sequence[str], *, folder: Path, log: Callable[[str], None] = print
) -> Replay:
    """Run the command of a replay to its end, and compare what it computed.

    Args:
        plan: Steps that are made again.
        command: Program and arguments of a run that loads the checkpoint of `plan.start`, ends after `plan.step` and
            writes into `folder`. Its output is captured.
        folder: Run folder of the replay.
        log: Receives a line of progress.

    Raises:
        VerificationError: The command failed, or made other steps.
    """
    source = f"the checkpoint of step {plan.start}" if plan.start else "the beginning of the run"
    log(f"steps {plan.start + 1} to {plan.step} again, from {source}")
    began = time.monotonic()
    ended = subprocess.run(command, text=True, capture_output=True, check=False)
    if ended.returncode != 0:
        raise VerificationError(
            f"the replay failed with exit code {ended.returncode}.\n{ended.stderr.strip() or ended.stdout.strip()}"
        )
    rows = {row["step"]: row for row in read_rows(folder / METRICS) if row["step"] in plan.recorded}
    missing = [step for step in plan.recorded if step not in rows]
    if missing:
        raise VerificationError(
            f"the replay made no step {missing[0]}, so that only a part would be compared. See {folder}."
        )
    norms = folder / TENSOR_NORMS
    return Replay(
        plan=plan,
        seconds=time.monotonic() - began,
        names=compared_names(plan.recorded, rows),
        differences=tuple(differences(plan.recorded, rows)),
        tensor_norms={row["step"]: row for row in read_rows(norms)} if norms.exists() else {},
    )


def compared_names(
    recorded: Mapping[int, Mapping[str, Any]], replayed: Mapping[int, Mapping[str, Any]]
) -> tuple[str, ...]:
    """Return the metrics that a step computes and that both runs have, in their order."""
    names = dict.fromkeys(name for step, row in recorded.items() for name in row if name in replayed[step])
    return tuple(name for name in names if _COMPUTED.search(name) and not name.startswith("throughput"))


def differences(
    recorded: Mapping[int, Mapping[str, Any]], replayed: Mapping[int, Mapping[str, Any]]
) -> Iterator[MetricDifference]:
    """Yield each compared metric whose values are not the same number, step by step."""
    names = compared_names(recorded, replayed)
    for step, row in sorted(recorded.items()):
        for name in names:
            if name in row and name in replayed[step] and row[name] != replayed[step][name]:
                yield MetricDifference(
                    step=step, name=name, recorded=row[name], replayed=replayed[step][name]
                )


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; an incomplete last line is left out.

    Raises:
        ReplayRequestError: The file is missing, or a line is not a JSON object with a step.
    """
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        raise ReplayRequestError(
            f"{file}: no such file, so that no step is known. Give a run folder."
        ) from None
    for number, line in enumerate(lines, start=1):
        row = parse_row(line)
        if row is None or step_of_row(row) is None:
            raise ReplayRequestError(
                f"{file}: line {number} is not a JSON object with a step. Restore the file."
            )
        yield row
