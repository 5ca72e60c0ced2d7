"""Check many variations of one configuration at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from mb_config.problems import NOTHING, Problem, RuleLike, applies, check, value_at

Index = tuple[int, ...]
"""A point: for each axis, which of its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A field and the values that it takes in turn."""

    path: str
    """`section.field`, a whole section, or `facts.world_size`."""
    values: tuple[Any, ...]
    """As the section holds them, not as they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedGroup:
    """Points that the same rules refuse."""

    rules: tuple[str, ...]
    """Ids, in the order of the rules."""
    count: int
    first: Index
    """The first of these points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What became of every point."""

    axes: tuple[Axis, ...]
    passing: tuple[Index, ...]
    """Points that no rule refuses; the last axis moves fastest."""
    rejected: tuple[RejectedGroup, ...]
    """All others, the largest group first."""
    problems: Mapping[str, Problem]
    """What each refusing rule says at the first point that it refuses."""

    @property
    def total(self) -> int:
        """Number of points."""
        return prod(len(axis.values) for axis in self.axes)

    def values(self, index: Index) -> dict[str, Any]:
        """Return path to value at a point."""
        return {axis.path: axis.values[number] for axis, number in zip(self.axes, index, strict=True)}


def run_sweep(
    sections: Mapping[str, object],
    axes: Iterable[Axis],
    rules: Iterable[RuleLike],
    *,
    facts: Mapping[str, object] = NOTHING,
) -> SweepResult:
    """Apply the rules that are errors to every combination of the axes' values; changes nothing.

    A rule is evaluated once for each combination of the axes that it reads, not for each point: rules that read none of
    them once in all. Nothing is resolved.

    Args:
        sections: As for `check`.
        axes: Fields that vary; their values in `sections` do not matter.
        rules: As for `check`; warnings refuse nothing.
        facts: As for `check`; an axis may be one of them.

    Raises:
        ValueError: an axis has no values, or two axes are about the same field.
    """
    fixed = _checked(axes)
    walk = _GridTraversal(sections=sections, facts=facts, axes=fixed)
    errors = [rule for rule in rules if rule.severity == "error"]
    touched = [(order, rule, _touched(rule, fixed)) for order, rule in enumerate(errors)]
    always = tuple(order for order, rule, by in touched if not by and walk.rejects(rule, (0,) * len(fixed)))
    for order, rule, by in touched:
        if by:
            walk.tests[by[-1]].append((order, walk.memoized(rule, by)))
    walk.visit(0, [0] * len(fixed), always)
    groups = [
        RejectedGroup(
            rules=tuple(dict.fromkeys(errors[order].id for order in orders)), count=count, first=first
        )
        for orders, (count, first) in walk.rejected.items()
    ]
    firsts: dict[int, Index] = {}
    for orders, (_, first) in walk.rejected.items():
        for order in orders:
            firsts.setdefault(order, first)
    return SweepResult(
        axes=fixed,
        passing=tuple(walk.passing),
        rejected=tuple(sorted(_merged(groups), key=lambda group: -group.count)),
        problems={errors[order].id: walk.problem(errors[order], firsts[order]) for order in sorted(firsts)},
    )


def at_point(sections: Mapping[str, object], axes: Sequence[Axis], index: Index) -> dict[str, object]:
    """Return the sections at a point; only what an axis changes is copied, and `sections` stays as it is."""
    changed = dict(sections)
    for axis, number in zip(axes, index, strict=True):
        name, *keys = axis.path.split(".")
        changed[name] = _with(changed.get(name), keys, axis.values[number])
    return changed


def _with(section: Any, keys: Sequence[str], value: object) -> Any:
    """Return a copy of a section with a value at a path."""
    if not keys:
        return value
    if section is None or isinstance(section, Mapping):
        known = dict(section or {})
        return {**known, keys[0]: _with(known.get(keys[0]), keys[1:], value)}
    alias = copy.copy(section)
    object.__setattr__(alias, keys[0], _with(getattr(section, keys[0], None), keys[1:], value))
    return alias


def _checked(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    fixed = tuple(axes)
    for number, axis in enumerate(fixed):
        if not axis.values:
            raise ValueError(
                f"{axis.path}: has no values to sweep over, because the list is empty. Give at least one."
            )
        for other in fixed[:number]:
            if _related(axis.path, other.path):
                raise ValueError(
                    f"{axis.path}: is swept over twice (with {other.path}), because each point sets a field once. Keep "
                    "one of the two."
                )
    return fixed


def _related(one: str, two: str) -> bool:
    """Say whether two paths are the same, or one is inside the other."""
    return one == two or one.startswith(f"{two}.") or two.startswith(f"{one}.")


def _touched(rule: RuleLike, axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(
        number for number, axis in enumerate(axes) if any(_related(path, axis.path) for path in rule.fields)
    )


def _merged(groups: Iterable[RejectedGroup]) -> list[RejectedGroup]:
    """Join groups of the same ids: several rules may share one."""
    merged: dict[tuple[str, ...], RejectedGroup] = {}
    for group in groups:
        known = merged.get(group.rules)
        count, first = (
            (group.count, group.first) if known is None else (known.count + group.count, known.first)
        )
        merged[group.rules] = RejectedGroup(rules=group.rules, count=count, first=first)
    return list(merged.values())


@dataclass(kw_only=True)
class _GridTraversal:
    """A walk over all points, axis by axis, so that what one axis decides is decided once for all points behind it."""

    sections: Mapping[str, object]
    facts: Mapping[str, object]
    axes: tuple[Axis, ...]
    passing: list[Index] = field(default_factory=list)
    rejected: dict[tuple[int, ...], tuple[int, Index]] = field(default_factory=dict)
    """Rules, by their order, to the number of points that exactly these refuse, and the first."""
    tests: list[list[tuple[int, Callable[[list[int]], bool]]]] = field(default_factory=list)
    """For each axis, rules that are decided by it and the axes before."""

    def __post_init__(self) -> None:
        self.tests = [[] for _ in self.axes]

    def visit(self, depth: int, index: list[int], violated: tuple[int, ...]) -> None:
        """Go through all values of the axes from `depth` on."""
        if depth == len(self.axes):
            self._arrive(tuple(index), violated)
            return
        tests = self.tests[depth]
        for number in range(len(self.axes[depth].values)):
            index[depth] = number
            found = [order for order, rejects in tests if rejects(index)]
            self.visit(depth + 1, index, (*violated, *found) if found else violated)

    def _arrive(self, index: Index, violated: tuple[int, ...]) -> None:
        if not violated:
            self.passing.append(index)
            return
        key = tuple(sorted(violated))
        count, first = self.rejected.get(key, (0, index))
        self.rejected[key] = (count + 1, first)

    def memoized(self, rule: RuleLike, by: tuple[int, ...]) -> Callable[[list[int]], bool]:
        """Return a test of a point that evaluates the rule once for each combination of the axes `by`."""
        evaluate = self._evaluate(rule)
        known: dict[object, bool] = {}
        only = by[0] if len(by) == 1 else None

        def rejects(index: list[int]) -> bool:
            key = index[only] if only is not None else tuple([index[number] for number in by])
            answer = known.get(key)
            if answer is None:
                answer = known[key] = evaluate(index)
            return answer

        return rejects

    def _evaluate(self, rule: RuleLike) -> Callable[[Sequence[int]], bool]:
        """Return the rule as a function of a point: by its fields alone if they are axes, else by copied sections."""
        axis_numbers = {axis.path: number for number, axis in enumerate(self.axes)}
        if not all(self._plain(path, axis_numbers) for path in rule.fields):
            return lambda index: self.rejects(rule, index)
        known = {name: it for name, it in self._known((0,) * len(self.axes)).items() if it is not None}
        if not applies(rule, known):
            return lambda index: False
        values = [None if path in axis_numbers else value_at(path, known) for path in rule.fields]
        moving = [
            (at, axis_numbers[path], self.axes[axis_numbers[path]].values)
            for at, path in enumerate(rule.fields)
            if path in axis_numbers
        ]
        test = rule.test

        def evaluate(index: Sequence[int]) -> bool:
            for at, number, choices in moving:
                values[at] = choices[index[number]]
            return test(*values) is not None

        return evaluate

    def _plain(self, path: str, axis_numbers: Mapping[str, int]) -> bool:
        """Say whether a path is a field that is swept over itself, and always there, or not touched at all."""
        if path not in axis_numbers:
            return not any(_related(path, axis.path) for axis in self.axes)
        section, _, leaf = path.partition(".")
        return bool(leaf) and (section != "facts" or None not in self.axes[axis_numbers[path]].values)

    def _known(self, index: Index) -> dict[str, object]:
        return at_point({**self.sections, "facts": self.facts}, self.axes, index)

    def _found(self, rule: RuleLike, index: Index) -> list[Problem]:
        known = self._known(index)
        facts: Any = known.pop("facts")
        return check({name: it for name, it in known.items() if it is not None}, [rule], facts=facts)

    def rejects(self, rule: RuleLike, index: Sequence[int]) -> bool:
        """Say whether the rule refuses a point."""
        return bool(self._found(rule, tuple(index)))

    def problem(self, rule: RuleLike, index: Index) -> Problem:
        """Return what the rule says at a point that it refuses."""
        return self._found(rule, index)[0]
