"""Comparison of the records of two runs: counts for each category, and the first difference. No torch.

The uninterrupted run is started once. The interrupted run is started, stops, and is started again from its checkpoint
once or several times; these starts are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mb_verify.errors import VerificationError
from mb_verify.record.run_record import ALL_RANKS, RecordPosition, RecordRow, RunRecord, Values

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
"""Categories of values, causes before effects: of several differences at one position, that of the first is named."""

ABSENT = "not there"
"""Value of a name that only the other record has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value that differs between two runs."""

    category: str
    name: str
    position: RecordPosition
    uninterrupted: str
    """Value of the uninterrupted run; `ABSENT` if it has none."""
    interrupted: str
    """Value of the interrupted run; `ABSENT` if it has none."""
    start: int = field(default=0, compare=False)
    """Number of the start of the interrupted run that has the value."""

    def __str__(self) -> str:
        """Return category, name, position and both values."""
        return self.describe("the uninterrupted run", "the interrupted one")

    def describe(self, first: str, second: str) -> str:
        """Return category, name, position and both values, with these names of the two runs."""
        when = "after" if self.position.after_step else "in"
        where = f"{when} step {self.position.step}, rank {self.position.rank}"
        return f"{self.category}: {self.name}, {where}: {self.uninterrupted} in {first}, {self.interrupted} in {second}"


@dataclass(slots=True, kw_only=True)
class CategoryCount:
    """Number of compared and of different values of a category."""

    category: str
    compared: int = 0
    different: int = 0
    names: set[str] = field(default_factory=set)
    """Names of its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a comparison."""

    lines: tuple[CategoryCount, ...]
    """Counts of each category that has values."""
    first: Difference | None
    """The earliest difference; None if all values are equal."""
    ranks: int
    """Number of ranks that were compared."""
    last_step: int
    """Last step of the uninterrupted run."""
    resumed_at: tuple[int, ...]
    """Step from which each later start of the interrupted run resumed."""
    unseeded: tuple[str, ...] = ()
    """Random streams that were not compared: neither run drew from them, and they differ before the interruption."""
    loaded_equal: bool | None = None
    """Whether the states that the later starts loaded equal those of the uninterrupted run; None: none was recorded."""

    @property
    def equal(self) -> bool:
        """Whether all values are equal."""
        return self.first is None

    @property
    def differs_before_interruption(self) -> bool:
        """Whether the first difference is in a step up to the interruption, before a checkpoint was saved."""
        if self.first is None or self.first.start != 0 or not self.resumed_at:
            return False
        position, step = self.first.position, self.resumed_at[0]
        return position.step < step or (position.step == step and not position.after_step)

    @property
    def notes(self) -> list[str]:
        """A line for each stream that was not compared."""
        return [
            f"not compared: {name}, which was not seeded, and from which neither run drew"
            for name in self.unseeded
        ]


def compare(uninterrupted: RunRecord, interrupted: RunRecord, *, same_ranks: bool = True) -> Verdict:
    """Compare every value that either run recorded, for every step.

    A step that the interrupted run executed twice, before the interruption and again after its checkpoint, is compared
    both times. The state at the end of a start is compared only where the uninterrupted run has it: that run records no
    state before a step that it leaves out (`train.iterations_to_skip`).

    Args:
        uninterrupted: record of a run with one start.
        interrupted: record of a run with several starts.
        same_ranks: if True, compare rank by rank; otherwise compare the values that do not depend on the number of
            processes.

    Raises:
        VerificationError: the uninterrupted run recorded no values of the kind that is compared.
    """
    positions = [row.position for row in rows_to_compare(uninterrupted, same_ranks=same_ranks)]
    if not positions:
        raise VerificationError(
            "the uninterrupted run recorded no values to compare: it has no step, or none of its ranks reads data. "
            "Record a run of at least one step."
        )
    counts = {category: CategoryCount(category=category) for category in CATEGORIES}
    differences: list[Difference] = []
    pairs = pair_rows(uninterrupted, interrupted, same_ranks=same_ranks)
    unseeded = unseeded_streams(pairs, uninterrupted, interrupted)
    for pair in pairs:
        for full_name in (pair.uninterrupted.keys() | pair.interrupted.keys()) - unseeded:
            category, _, name = full_name.partition(": ")
            count = counts.setdefault(category, CategoryCount(category=category))
            count.compared += 1
            count.names.add(name)
            difference = pair.difference(category, name)
            if difference is not None:
                count.different += 1
                differences.append(difference)
    loaded = [
        without(pair.uninterrupted, unseeded) == without(pair.interrupted, unseeded)
        for pair in pairs
        if pair.is_loaded_by(interrupted)
    ]
    return Verdict(
        lines=tuple(count for count in counts.values() if count.compared),
        first=min(map(narrow, differences), key=sort_key) if differences else None,
        ranks=len({position.rank for position in positions}),
        last_step=max(position.step for position in positions),
        resumed_at=interrupted.started_at[1:],
        unseeded=tuple(sorted(name.partition(": ")[2] for name in unseeded)),
        loaded_equal=all(loaded) if loaded else None,
    )


def unseeded_streams(pairs: Sequence[RowPair], *runs: RunRecord) -> set[str]:
    """Return the random streams that differ at the first position of both runs, and never change within a start.

    Nothing drew from such a stream, so it had no part in any value; it differs because it was not seeded.
    """
    first = min((pair for pair in pairs if pair.start == 0), key=lambda pair: pair.position, default=None)
    if first is None:
        return set()
    names = {
        name
        for name in first.uninterrupted.keys() & first.interrupted.keys()
        if name.startswith("random streams: ") and first.uninterrupted[name] != first.interrupted[name]
    }
    for run in runs:
        states: dict[tuple[str, int, int], str] = {}
        for row in run.rows:
            for name in names & row.values.keys():
                state = row.values[name]
                if states.setdefault((name, row.position.rank, row.start), state) != state:
                    names.discard(name)
    return names


def without(values: Values, names: set[str]) -> Values:
    """Return the values that do not have one of these names."""
    return {name: value for name, value in values.items() if name not in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPair:
    """Values of both runs at one position; the values of a run that recorded none are empty."""

    position: RecordPosition
    uninterrupted: Values
    interrupted: Values
    start: int
    """Number of the start of the interrupted run that recorded the values, or should have."""

    def is_loaded_by(self, interrupted: RunRecord) -> bool:
        """Return whether the values are the state from which a later start of the interrupted run resumed."""
        position = self.position
        return bool(
            self.start and position.after_step and position.step == interrupted.started_at[self.start]
        )

    def difference(self, category: str, name: str) -> Difference | None:
        """Return the difference of one value; None if both runs have the same."""
        full_name = f"{category}: {name}"
        old = self.uninterrupted.get(full_name, ABSENT)
        new = self.interrupted.get(full_name, ABSENT)
        if old == new:
            return None
        return Difference(
            category=category,
            name=name,
            position=self.position,
            uninterrupted=old,
            interrupted=new,
            start=self.start,
        )


def rows_to_compare(run: RunRecord, *, same_ranks: bool) -> list[RecordRow]:
    """Return the rows of each rank, or those of all ranks together."""
    return [row for row in run.rows if (row.position.rank == ALL_RANKS) != same_ranks]


def pair_rows(uninterrupted: RunRecord, interrupted: RunRecord, *, same_ranks: bool) -> list[RowPair]:
    """Return the rows of both runs by position: all of the interrupted run, and those that it lacks.

    The state at the end of a start is left out if the uninterrupted run has none there; see `compare`.
    """
    expected = {row.position: row.values for row in rows_to_compare(uninterrupted, same_ranks=same_ranks)}
    pairs = []
    for row in rows_to_compare(interrupted, same_ranks=same_ranks):
        position = row.position
        at_interruption = position.after_step and position.step in interrupted.started_at
        if position in expected or not at_interruption:
            pairs.append(
                RowPair(
                    position=position,
                    uninterrupted=expected.get(position, {}),
                    interrupted=row.values,
                    start=row.start,
                )
            )
    missing = expected.keys() - {pair.position for pair in pairs}
    pairs += [
        RowPair(
            position=position,
            uninterrupted=expected[position],
            interrupted={},
            start=start_of_step(position.step, interrupted),
        )
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
    """Reduce a difference of two batches to the first microbatch and sequence that differ, or to their numbers.

    The samples of a rank are microbatches separated by spaces, of sequences separated by commas; those of all ranks
    are sequences separated by spaces.
    """
    if difference.category != "samples" or ABSENT in (difference.uninterrupted, difference.interrupted):
        return difference
    old, new = (text.split() for text in (difference.uninterrupted, difference.interrupted))
    if difference.position.rank == ALL_RANKS:
        return narrow_items(difference, old, new, number="number", at="")
    for microbatch, (old_item, new_item) in enumerate(zip(old, new, strict=False)):
        if old_item != new_item:
            at = f", microbatch {microbatch}"
            return narrow_items(
                difference, old_item.split(","), new_item.split(","), number=f"number of sequences{at}", at=at
            )
    return narrow_items(difference, old, new, number="number of microbatches", at="")


def narrow_items(
    difference: Difference, old: Sequence[str], new: Sequence[str], *, number: str, at: str
) -> Difference:
    """Return the difference of the first pair of items that differ, or of the numbers of items.

    Args:
        difference: Difference of two lists.
        old: Items of the uninterrupted run.
        new: Items of the interrupted run.
        number: Name of the number of items.
        at: Position of the list, as an addition to the name; empty if the items are not sequences of a microbatch.
    """
    for position, (old_item, new_item) in enumerate(zip(old, new, strict=False)):
        if old_item != new_item:
            where = f"{at}, sequence {position}" if at else ""
            return replace(
                difference, name=difference.name + where, uninterrupted=old_item, interrupted=new_item
            )
    name = f"{difference.name}, {number}"
    return replace(difference, name=name, uninterrupted=str(len(old)), interrupted=str(len(new)))
