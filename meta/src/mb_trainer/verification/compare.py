"""Compare what two runs wrote down: a table, and the first difference with its name. No torch."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

CATEGORIES = (
    "samples",
    "counters",
    "random streams",
    "learning rate",
    "losses",
    "gradient norm",
    "optimizer",
    "parameters",
)
"""What is compared, causes before effects: of several differences at the same place the earlier one is named."""

ABSENT = "not there"
OF_THE_RUN = frozenset({"samples", "counters", "learning rate"})
"""What must not depend on how many processes share the work."""


class VerificationError(RuntimeError):
    """A run of the proof did not go as it has to, so that there is nothing to compare."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a value was written: in the order in which things happen."""

    step: int
    held: bool
    """After the step, rather than in it."""
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that is not the same."""

    category: str
    name: str
    place: Place
    straight: str
    cut: str
    start: int = field(default=0, compare=False)
    """Start of the second run that has the value."""

    def __str__(self) -> str:
        """Return category, name, position and both values."""
        return self.between("the straight run", "the cut one")

    def between(self, first: str, second: str) -> str:
        """Return the same text for two runs with other names."""
        when = "after" if self.place.held else "in"
        where = f"{when} step {self.place.step}, rank {self.place.rank}"
        return f"{self.category}: {self.name}, {where}: {self.straight} in {first}, {self.cut} in {second}"


@dataclass(slots=True, kw_only=True)
class Line:
    """A line of the table."""

    category: str
    compared: int = 0
    different: int = 0
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a comparison found."""

    lines: tuple[Line, ...]
    first: Difference | None
    ranks: int
    steps: int
    resumed_at: tuple[int, ...]
    """Steps at which the cut run started again."""
    loaded_equal: bool | None = None
    """The state that each later start loaded was equal to the straight run's; None: nothing to compare it with."""

    @property
    def equal(self) -> bool:
        """Whether everything was the same."""
        return self.first is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of a file."""

    place: Place
    values: Mapping[str, str]
    start: int
    """Number of the start of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What all ranks of a run wrote, over all its starts."""

    rows: tuple[Row, ...]
    started_at: tuple[int, ...]
    """The step at which each start began."""
    conditions: Mapping[tuple[int, int], Mapping[str, str]] = field(default_factory=dict)
    """Threads, processor and versions by start and rank."""


def read_record(folder: Path) -> Record:
    """Read every file; a last line that a killed process did not finish is left out.

    Raises:
        VerificationError: there is none.
    """
    rows: list[Row] = []
    starts: dict[int, int] = {}
    readers: set[tuple[int, int]] = set()
    conditions: dict[tuple[int, int], Mapping[str, str]] = {}
    for file in sorted(folder.glob("rank-*.*.jsonl")):
        rank, start = (int(part) for part in file.name.removeprefix("rank-").split(".")[:2])
        for line in file.read_text().split("\n")[:-1]:
            row = json.loads(line)
            if row["kind"] == "start":
                starts[start] = row["step"]
                conditions[start, rank] = row.get("conditions", {})
                if row["values"]["reads"] == "True":
                    readers.add((rank, start))
                continue
            place = Place(row["step"], row["kind"] == "held", rank)
            rows.append(Row(place=place, values=row["values"], start=start))
    if not rows:
        raise VerificationError(f"{folder}: the run has recorded no step. Look for its error above.")
    return Record(
        rows=tuple(rows + list(whole_batches(rows, readers))),
        started_at=tuple(starts[start] for start in sorted(starts)),
        conditions=conditions,
    )


WHOLE = -1
"""In the place of a rank: all of them."""


def whole_batches(rows: Iterable[Row], readers: set[tuple[int, int]]) -> Iterator[Row]:
    """Yield for each step what all ranks together read, and what is the same on all of them."""
    together: dict[tuple[int, Place], dict[str, str]] = {}
    for row in rows:
        if (row.place.rank, row.start) not in readers:
            continue
        place = Place(row.place.step, row.place.held, WHOLE)
        values = together.setdefault((row.start, place), {})
        for name, value in row.values.items():
            category = name.partition(": ")[0]
            if category == "samples" and "tokens" in name:
                read = [*values.get(ALL_SEQUENCES, "").split(), *value.replace(",", " ").split()]
                values[ALL_SEQUENCES] = " ".join(sorted(read))
            elif category in OF_THE_RUN - {"samples"}:
                values.setdefault(name, value)
    for (start, place), values in together.items():
        yield Row(place=place, values=values, start=start)


ALL_SEQUENCES = "samples: sequences of the global batch"


def compare(straight: Record, cut: Record, *, same_ranks: bool = True) -> Verdict:
    """Compare every value that either run has, for every step; steps that the cut run made twice, both times.

    What is held where the cut run stopped has its equal only where the straight run made the next step, too, instead of
    leaving it out (`train.iterations_to_skip`).

    Args:
        straight: of the run that nobody interrupted, in one start.
        cut: of the other.
        same_ranks: compare rank by rank; False compares what does not depend on the number of processes.
    """

    def at_cut(place: Place) -> bool:
        return place.held and place.step in cut.started_at

    lines = {category: Line(category=category) for category in CATEGORIES}
    differences: list[Difference] = []
    chosen = [row for row in straight.rows if (row.place.rank == WHOLE) != same_ranks]
    wanted = {row.place: row.values for row in chosen}
    there = [
        row
        for row in cut.rows
        if (row.place.rank == WHOLE) != same_ranks and not (at_cut(row.place) and row.place not in wanted)
    ]
    missing = wanted.keys() - {row.place for row in there}
    pairs = [(row.place, wanted.get(row.place, {}), row.values, row.start) for row in there]
    pairs += [(place, wanted[place], {}, start_that_makes(place.step, cut)) for place in missing]
    loaded: list[bool] = []
    for place, expected, found, start in pairs:
        if start and place.held and place.step == cut.started_at[start]:
            loaded.append(expected == found)
        for full in expected.keys() | found.keys():
            category, _, name = full.partition(": ")
            line = lines[category]
            line.compared += 1
            line.names.add(name)
            old, new = expected.get(full, ABSENT), found.get(full, ABSENT)
            if old != new:
                line.different += 1
                differences.append(
                    Difference(category=category, name=name, place=place, straight=old, cut=new, start=start)
                )
    return Verdict(
        lines=tuple(line for line in lines.values() if line.compared),
        first=min(map(narrowed, differences), key=order) if differences else None,
        ranks=len({place.rank for place in wanted}),
        steps=max(place.step for place in wanted),
        resumed_at=cut.started_at[1:],
        loaded_equal=all(loaded) if loaded else None,
    )


def start_that_makes(step: int, run: Record) -> int:
    """Return the start of a run that was to make a step: the last one that began before it."""
    return max((start for start, began in enumerate(run.started_at) if began < step), default=0)


def order(difference: Difference) -> tuple[int, bool, int, int, int, str]:
    """Return what differences are sorted by: time, start, cause before effect, rank, name."""
    place, category = difference.place, CATEGORIES.index(difference.category)
    return place.step, place.held, difference.start, category, place.rank, difference.name


def narrowed(difference: Difference) -> Difference:
    """Return a difference of whole batches as that of the first microbatch and sequence that differs."""
    if difference.category != "samples" or ABSENT in (difference.straight, difference.cut):
        return difference
    old, new = (text.split() for text in (difference.straight, difference.cut))
    for number, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other:
            sequences = zip(one.split(","), other.split(","), strict=False)
            for place, (first, second) in enumerate(sequences):
                if first != second:
                    where = f"{difference.name}, microbatch {number}, sequence {place}"
                    if difference.place.rank == WHOLE:
                        where = difference.name
                    return replace(difference, name=where, straight=first, cut=second)
    unit = "" if difference.place.rank == WHOLE else " of microbatches"
    name = f"{difference.name}, number{unit}"
    return replace(difference, name=name, straight=str(len(old)), cut=str(len(new)))
