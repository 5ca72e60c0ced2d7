"""Record of a run: a file of JSON lines for each rank and each start. No torch.

A line holds the values of one position, `"category: name"` to text: a number with all its digits, or a hash. There
are three kinds of lines: `start` (the step at which a start of the run began, and the conditions of its process),
`state` (values held between two steps) and `step` (values that a step read and computed).
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mb_verify.errors import VerificationError

Values = Mapping[str, str]
"""`"category: name"` -> number or hash. `CATEGORIES` lists the categories."""

RecordedValue = str | bool | int | float | None
"""Value that a loop may pass; it is recorded as text with all its digits, in which -0.0 is not 0.0, and NaN is NaN."""

ALL_RANKS = -1
"""Rank of a row that describes all ranks together."""

GLOBAL_BATCH = "samples: sequences of the global batch"
"""Name of the sequences that all ranks together read in a step, sorted."""

TOKENS = frozenset({"tokens", "text_enc", "input_ids"})
"""Tensors of a microbatch with the sequences of a model: of GPT and hybrids, of T5, of Megatron-Bridge's packs."""

INDEPENDENT_OF_RANKS = frozenset({"samples", "counters", "learning rate"})
"""Categories that do not depend on the number of processes that share the work."""


@dataclass(frozen=True, slots=True, order=True)
class RecordPosition:
    """Position of recorded values, in the order of time."""

    step: int
    after_step: bool
    """The state after the step, rather than the values of the step."""
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """Values of one position, from one line of a file."""

    position: RecordPosition
    values: Values
    start: int
    """Number of the start of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Rows of all ranks of a run, over all its starts."""

    rows: tuple[RecordRow, ...]
    started_at: tuple[int, ...]
    """The step at which each start began."""
    conditions: Mapping[tuple[int, int], Values] = field(default_factory=dict)
    """Threads, processor and versions, by start and rank."""


class RecordFile:
    """Record of one rank in one start of a run, for loops without callbacks.

    Call `start` once, `state` before each step and at the end, `step` after each step. Each call appends a line.

    Args:
        folder: receives `rank-<rank>.<start>.jsonl`; one folder for all ranks and starts of a run.
        rank: rank of this process.
        start: number of the start of the run, 0 for the first and one more for each resume; None: the next one of this
            rank, by the files in the folder.

    Raises:
        VerificationError: from `start`, if this start was recorded before; from `state` and `step`, if `start` was not
            called, a name has no category, or a value is neither text nor a number.
    """

    def __init__(self, folder: Path | str, *, rank: int = 0, start: int | None = None) -> None:
        number = next_start(Path(folder), rank=rank) if start is None else start
        self._path = Path(folder) / f"rank-{rank}.{number}.jsonl"
        self._rank = rank
        self._is_started = False

    def start(self, step: int, *, reads_data: bool = True, conditions: Values | None = None) -> None:
        """Record the beginning of a start.

        Args:
            step: steps completed before it.
            reads_data: whether this rank is the first of those that read the same sequences.
            conditions: threads, processor and versions; printed where two runs differ.
        """
        if self._path.exists():
            raise VerificationError(
                f"{self._path}: this start was recorded before, and its values would be mixed with those of another. "
                "Pass the next number (start=None finds it, as does an unset MB_VERIFY_START), or another folder."
            )
        self._is_started = True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        values = {"rank": str(self._rank), "reads": str(reads_data)}
        self._write("start", step, values, conditions=conditions or {}, process=os.getpid())

    def state(self, step: int, values: Mapping[str, RecordedValue]) -> None:
        """Record the values held after `step` completed steps."""
        self._write("state", step, self._named(values))

    def step(self, step: int, values: Mapping[str, RecordedValue]) -> None:
        """Record the values that step number `step` (from 1) read and computed."""
        self._write("step", step, self._named(values))

    def _named(self, values: Mapping[str, RecordedValue]) -> Values:
        if not self._is_started:
            raise VerificationError(f"{self._path}: is not started. Call start() before state() and step().")
        unnamed = [name for name in values if ": " not in name]
        if unnamed:
            raise VerificationError(
                f"{self._path}: {unnamed[0]!r} has no category, so it cannot be compared. Pass what read_torch_step "
                "and read_torch_state return, or names such as 'losses: loss'."
            )
        unsupported = [
            name for name, value in values.items() if not isinstance(value, str | int | float | None)
        ]
        if unsupported:
            raise VerificationError(
                f"{self._path}: {unsupported[0]!r} is a {type(values[unsupported[0]]).__name__}, which is neither "
                "text nor a number. Pass .item() of a tensor or an array with one element, or a hash."
            )
        return {name: value_text(value) for name, value in values.items()}

    def _write(self, kind: str, step: int, values: Values, **more: Values | int) -> None:
        line = json.dumps({"kind": kind, "step": step, "time": time.time(), "values": values, **more})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def rank_and_start(file: Path) -> tuple[int, int]:
    """Return rank and number of the start of a file of a record, `rank-<rank>.<start>.jsonl`."""
    rank, start = file.name.removeprefix("rank-").split(".")[:2]
    return int(rank), int(start)


def next_start(folder: Path, *, rank: int) -> int:
    """Return the number of the next start of a rank: one more than the highest in a folder."""
    starts = (file.name.split(".")[1] for file in folder.glob(f"rank-{rank}.*.jsonl"))
    return max((int(start) for start in starts if start.isdecimal()), default=-1) + 1


def value_text(value: RecordedValue) -> str:
    """Return the text of a value; two texts are equal if and only if the values are, bit for bit."""
    return float.__repr__(value) if isinstance(value, float) else str(value)


def read_record(folder: Path | str) -> RunRecord:
    """Read the record of a run from all files of a folder.

    A last line that a killed process did not complete is left out. Starts are numbered from 0, also if one of them has
    recorded nothing.

    Raises:
        VerificationError: there is no such folder, or it holds no recorded step.
    """
    if not Path(folder).is_dir():
        raise VerificationError(f"{folder}: no such folder. Pass the folder of a record.")
    rows: list[RecordRow] = []
    starts: dict[int, int] = {}
    readers: set[tuple[int, int]] = set()
    conditions: dict[tuple[int, int], Values] = {}
    lines_of = {
        file: file.read_text(encoding="utf-8").split("\n")[:-1]
        for file in sorted(Path(folder).glob("rank-*.*.jsonl"))
    }
    numbers = sorted({rank_and_start(file)[1] for file, lines in lines_of.items() if lines})
    for file, lines in lines_of.items():
        rank, number = rank_and_start(file)
        for line in lines:
            start = numbers.index(number)
            row = parse_line(line, file)
            if row["kind"] == "start":
                starts[start] = row["step"]
                conditions[start, rank] = row.get("conditions", {})
                if row["values"]["reads"] == "True":
                    readers.add((rank, start))
                continue
            position = RecordPosition(row["step"], row["kind"] == "state", rank)
            values = {name: value_text(value) for name, value in row["values"].items()}
            rows.append(RecordRow(position=position, values=values, start=start))
    if not rows:
        raise VerificationError(f"{folder}: the run has recorded no step. Look for its error above.")
    return RunRecord(
        rows=tuple(rows + list(rows_of_all_ranks(rows, readers))),
        started_at=tuple(starts[start] for start in sorted(starts)),
        conditions=conditions,
    )


def parse_line(line: str, file: Path) -> dict[str, Any]:
    """Parse a line of a record.

    Raises:
        VerificationError: it is not a JSON object of a record.
    """
    try:
        row = json.loads(line)
    except ValueError as error:
        raise VerificationError(f"{file}: is damaged ({error}). Record the run again.") from error
    if not isinstance(row, dict) or not {"kind", "step", "values"} <= row.keys():
        raise VerificationError(f"{file}: has a line that is not a part of a record. Record the run again.")
    return row


def rows_of_all_ranks(rows: Iterable[RecordRow], readers: set[tuple[int, int]]) -> Iterator[RecordRow]:
    """Yield for each step the sequences that all ranks together read, and the values identical on all of them."""
    together: dict[tuple[int, RecordPosition], dict[str, str]] = {}
    for row in rows:
        if (row.position.rank, row.start) not in readers:
            continue
        position = RecordPosition(row.position.step, row.position.after_step, ALL_RANKS)
        values = together.setdefault((row.start, position), {})
        for name, value in row.values.items():
            category = name.partition(": ")[0]
            if category == "samples" and name.split()[1] in TOKENS:
                sequences = [*values.get(GLOBAL_BATCH, "").split(), *value.replace(",", " ").split()]
                values[GLOBAL_BATCH] = " ".join(sorted(sequences))
            elif category in INDEPENDENT_OF_RANKS - {"samples"}:
                values.setdefault(name, value)
    for (start, position), values in together.items():
        yield RecordRow(position=position, values=values, start=start)
