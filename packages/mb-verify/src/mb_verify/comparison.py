"""Comparison of two records: a count for each category, and the first difference. No torch."""

from dataclasses import dataclass, field, replace

from mb_verify.run_record import ALL_RANKS, RecordPosition, RunRecord

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

    def at_cut(position: RecordPosition) -> bool:
        return position.after_step and position.step in cut.started_at

    counts = {category: CategoryCount(category=category) for category in CATEGORIES}
    differences: list[Difference] = []
    chosen = [row for row in straight.rows if (row.position.rank == ALL_RANKS) != same_ranks]
    wanted = {row.position: row.values for row in chosen}
    there = [
        row
        for row in cut.rows
        if (row.position.rank == ALL_RANKS) != same_ranks
        and not (at_cut(row.position) and row.position not in wanted)
    ]
    missing = wanted.keys() - {row.position for row in there}
    pairs = [(row.position, wanted.get(row.position, {}), row.values, row.start) for row in there]
    pairs += [(position, wanted[position], {}, start_of_step(position.step, cut)) for position in missing]
    loaded: list[bool] = []
    for position, expected, found, start in pairs:
        if start and position.after_step and position.step == cut.started_at[start]:
            loaded.append(expected == found)
        for full in expected.keys() | found.keys():
            category, _, name = full.partition(": ")
            count = counts.setdefault(category, CategoryCount(category=category))
            count.compared += 1
            count.names.add(name)
            old, new = expected.get(full, ABSENT), found.get(full, ABSENT)
            if old != new:
                count.different += 1
                differences.append(
                    Difference(
                        category=category, name=name, position=position, straight=old, cut=new, start=start
                    )
                )
    return Verdict(
        lines=tuple(count for count in counts.values() if count.compared),
        first=min(map(narrow, differences), key=sort_key) if differences else None,
        ranks=len({position.rank for position in wanted}),
        steps=max(position.step for position in wanted),
        resumed_at=cut.started_at[1:],
        loaded_equal=all(loaded) if loaded else None,
    )


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
