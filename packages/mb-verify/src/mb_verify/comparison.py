"""Comparison of two records: a count for each category, and the first difference. No torch."""

from dataclasses import dataclass, field, replace

from mb_verify.run_record import ALL_RANKS, RecordPosition, RecordRow, RunRecord, Values

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
"""Categories of values, causes before effects: of several differences at one position the first category counts."""

ABSENT = "not there"
"""Value of a name that only the other record has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value that differs between two runs."""

    category: str
    name: str
    position: RecordPosition
    straight: str
    cut: str
    start: int = field(default=0, compare=False)
    """Start of the second run that has the value."""

    def __str__(self) -> str:
        """Return category, name, position and both values."""
        return self.between("the straight run", "the cut one")

    def between(self, first: str, second: str) -> str:
        """Return the same text with other names of the two runs."""
        when = "after" if self.position.after_step else "in"
        where = f"{when} step {self.position.step}, rank {self.position.rank}"
        return f"{self.category}: {self.name}, {where}: {self.straight} in {first}, {self.cut} in {second}"


@dataclass(slots=True, kw_only=True)
class CategoryCount:
    """Number of compared and of different values of a category."""

    category: str
    compared: int = 0
    different: int = 0
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a comparison."""

    lines: tuple[CategoryCount, ...]
    first: Difference | None
    ranks: int
    steps: int
    resumed_at: tuple[int, ...]
    """Steps at which the second run was started again."""
    loaded_equal: bool | None = None
    """Whether the state that each later start loaded equals the straight run's; None: no such state was recorded."""

    @property
    def equal(self) -> bool:
        """Whether all values are equal."""
        return self.first is None


def compare(straight: RunRecord, cut: RunRecord, *, same_ranks: bool = True) -> Verdict:
    """Compare every value of either run, for every step; steps that the cut run made twice, both times.

    The state at the end of a start of the cut run is compared only where the straight run has it: a straight run does
    not record it before a step that it leaves out (`train.iterations_to_skip`).

    Args:
        straight: record of the uninterrupted run, in one start.
        cut: record of the interrupted one.
        same_ranks: compare rank by rank; False compares values that do not depend on the number of processes.
    """
    counts = {category: CategoryCount(category=category) for category in CATEGORIES}
    differences: list[Difference] = []
    pairs = pair_rows(straight, cut, same_ranks=same_ranks)
    for pair in pairs:
        for full in pair.straight.keys() | pair.cut.keys():
            category, _, name = full.partition(": ")
            count = counts.setdefault(category, CategoryCount(category=category))
            count.compared += 1
            count.names.add(name)
            difference = pair.difference(category, name)
            if difference is not None:
                count.different += 1
                differences.append(difference)
    loaded = [pair.straight == pair.cut for pair in pairs if pair.is_loaded_by(cut)]
    wanted = [row.position for row in rows_to_compare(straight, same_ranks=same_ranks)]
    return Verdict(
        lines=tuple(count for count in counts.values() if count.compared),
        first=min(map(narrow, differences), key=sort_key) if differences else None,
        ranks=len({position.rank for position in wanted}),
        steps=max(position.step for position in wanted),
        resumed_at=cut.started_at[1:],
        loaded_equal=all(loaded) if loaded else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPair:
    """Values of both runs at one position; empty for a run that has none."""

    position: RecordPosition
    straight: Values
    cut: Values
    start: int
    """Start of the cut run that has, or should have, the values."""

    def is_loaded_by(self, cut: RunRecord) -> bool:
        """Return whether the values are the state that a later start of the cut run loaded."""
        position = self.position
        return bool(self.start and position.after_step and position.step == cut.started_at[self.start])

    def difference(self, category: str, name: str) -> Difference | None:
        """Return the difference of one value; None if both runs have the same."""
        full = f"{category}: {name}"
        old, new = self.straight.get(full, ABSENT), self.cut.get(full, ABSENT)
        if old == new:
            return None
        return Difference(
            category=category, name=name, position=self.position, straight=old, cut=new, start=self.start
        )


def rows_to_compare(run: RunRecord, *, same_ranks: bool) -> list[RecordRow]:
    """Return the rows of each rank, or those of all ranks together."""
    return [row for row in run.rows if (row.position.rank == ALL_RANKS) != same_ranks]


def pair_rows(straight: RunRecord, cut: RunRecord, *, same_ranks: bool) -> list[RowPair]:
    """Return the rows of both runs by position: all of the cut run, and those that it lacks; see `compare`."""
    wanted = {row.position: row.values for row in rows_to_compare(straight, same_ranks=same_ranks)}
    pairs = []
    for row in rows_to_compare(cut, same_ranks=same_ranks):
        position = row.position
        at_cut = position.after_step and position.step in cut.started_at
        if position in wanted or not at_cut:
            pairs.append(
                RowPair(
                    position=position,
                    straight=wanted.get(position, {}),
                    cut=row.values,
                    start=row.start,
                )
            )
    missing = wanted.keys() - {pair.position for pair in pairs}
    pairs += [
        RowPair(position=position, straight=wanted[position], cut={}, start=start_of_step(position.step, cut))
        for position in missing
    ]
    return pairs


def start_of_step(step: int, run: RunRecord) -> int:
    """Return the number of the start that should have made a step: the last one that began before it."""
    return max((start for start, began in enumerate(run.started_at) if began < step), default=0)


def sort_key(difference: Difference) -> tuple[int, bool, int, int, int, str]:
    """Return the sort key of differences: time, start, cause before effect, rank, name."""
    position = difference.position
    category = CATEGORIES.index(difference.category) if difference.category in CATEGORIES else len(CATEGORIES)
    return position.step, position.after_step, difference.start, category, position.rank, difference.name


def narrow(difference: Difference) -> Difference:
    """Return a difference between two batches as that of the first microbatch and sequence that differ."""
    if difference.category != "samples" or ABSENT in (difference.straight, difference.cut):
        return difference
    old, new = (text.split() for text in (difference.straight, difference.cut))
    all_ranks = difference.position.rank == ALL_RANKS
    for microbatch, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other:
            sequences = zip(one.split(","), other.split(","), strict=False)
            for sequence, (first, second) in enumerate(sequences):
                if first != second:
                    where = "" if all_ranks else f", microbatch {microbatch}, sequence {sequence}"
                    return replace(difference, name=difference.name + where, straight=first, cut=second)
    unit = "" if all_ranks else " of microbatches"
    name = f"{difference.name}, number{unit}"
    return replace(difference, name=name, straight=str(len(old)), cut=str(len(new)))
