"""Sweeps: rules applied to every combination of several values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Protocol

from mb_schema.rules import NOTHING, Problem, Rule, applies, check, value_at

Index = tuple[int, ...]
"""A point of the grid: the index of a value on each axis."""


class AxisLike(Protocol):
    """Axis as `run_sweep` reads it."""

    @property
    def path(self) -> str:
        """`section.field`, a section, or `facts.world_size`."""

    @property
    def values(self) -> tuple[Any, ...]:
        """Typed values, as the section contains them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A field and the values to sweep over."""

    path: str
    """`section.field`, a section, or `facts.world_size`."""
    values: tuple[Any, ...]
    """Typed values, as the section contains them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedGroup:
    """Points that are rejected by the same rules."""

    rules: tuple[str, ...]
    """Ids of the rules, in their order."""
    count: int
    first: Index
    """The first of these points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Result of a sweep: the passing and the rejected points."""

    axes: tuple[AxisLike, ...]
    passing: tuple[Index, ...]
    """Points that no rule rejects; the last axis varies fastest."""
    rejected: tuple[RejectedGroup, ...]
    """All other points, the largest group first."""
    problems: Mapping[str, Problem]
    """Problem of each violated rule at the first point that it rejects."""

    @property
    def total(self) -> int:
        """Number of points."""
        return prod(len(axis.values) for axis in self.axes)

    def values(self, index: Index) -> dict[str, Any]:
        """Return path to value at a point."""
        return {axis.path: axis.values[number] for axis, number in zip(self.axes, index, strict=True)}


def run_sweep(
    sections: Mapping[str, object],
    axes: Iterable[AxisLike],
    rules: Iterable[Rule],
    *,
    facts: Mapping[str, object] = NOTHING,
) -> SweepResult:
    """Apply the rules of severity "error" to every combination of the values of the axes. Does not modify anything.

    A rule is evaluated once for each combination of the axes that it reads, not for each point; a rule that reads no
    axis is evaluated once. The configuration is not resolved.

    Args:
        sections: Sections as for `check`.
        axes: Fields to vary. Their values in `sections` are ignored.
        rules: Rules as for `check`; warnings are ignored.
        facts: Facts as for `check`; an axis may be one of them.

    Raises:
        ValueError: If an axis has no values, or two axes set the same field.
    """
    fixed = _checked(axes)
    walk = _GridTraversal(sections=sections, facts=facts, axes=fixed)
    errors = [rule for rule in rules if rule.severity == "error"]
    touched = [(order, rule, _touched(rule, fixed)) for order, rule in enumerate(errors)]
    anywhere = (0,) * len(fixed)
    always = tuple(order for order, rule, by in touched if not by and walk.problems_at(rule, anywhere))
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
        problems={
            errors[order].id: walk.problems_at(errors[order], firsts[order])[0] for order in sorted(firsts)
        },
    )


def at_point(
    sections: Mapping[str, object], axes: Sequence[AxisLike], index: Sequence[int]
) -> dict[str, object]:
    """Return the sections at a point. Only sections that an axis changes are copied; `sections` is not modified."""
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
        fields = dict(section or {})
        return {**fields, keys[0]: _with(fields.get(keys[0]), keys[1:], value)}
    alias = copy.copy(section)
    object.__setattr__(alias, keys[0], _with(getattr(section, keys[0], None), keys[1:], value))
    return alias


def _checked(axes: Iterable[AxisLike]) -> tuple[AxisLike, ...]:
    fixed = tuple(axes)
    for number, axis in enumerate(fixed):
        if not axis.values:
            raise ValueError(
                f"{axis.path}: has no values to sweep over, because the list is empty. Give at least one."
            )
        for other in fixed[:number]:
            if _overlap(axis.path, other.path):
                raise ValueError(
                    f"{axis.path}: is on two axes (with {other.path}), because a point sets a field once. Remove one "
                    "of the two."
                )
    return fixed


def _overlap(path: str, other: str) -> bool:
    """Return True if two paths are equal, or one contains the other."""
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")


def _touched(rule: Rule, axes: Sequence[AxisLike]) -> tuple[int, ...]:
    return tuple(
        number for number, axis in enumerate(axes) if any(_overlap(path, axis.path) for path in rule.fields)
    )


def _merged(groups: Iterable[RejectedGroup]) -> list[RejectedGroup]:
    """Merge groups with equal ids, as several rules may share one id."""
    merged: dict[tuple[str, ...], RejectedGroup] = {}
    for group in groups:
        earlier = merged.get(group.rules)
        if earlier is not None:
            group = replace(earlier, count=earlier.count + group.count)
        merged[group.rules] = group
    return list(merged.values())


@dataclass(kw_only=True)
class _GridTraversal:
    """Depth-first traversal of the grid. A rule is evaluated as soon as all axes that it reads are set."""

    sections: Mapping[str, object]
    facts: Mapping[str, object]
    axes: tuple[AxisLike, ...]
    passing: list[Index] = field(default_factory=list)
    rejected: dict[tuple[int, ...], tuple[int, Index]] = field(default_factory=dict)
    """Indices of rules to the number of points that exactly these rules reject, and the first point."""
    tests: list[list[tuple[int, Callable[[list[int]], bool]]]] = field(default_factory=list)
    """For each axis, the rules whose last input it is."""

    def __post_init__(self) -> None:
        self.tests = [[] for _ in self.axes]

    def visit(self, depth: int, index: list[int], violated: tuple[int, ...]) -> None:
        """Visit all values of the axes from `depth` on."""
        if depth == len(self.axes):
            self._arrive(tuple(index), violated)
            return
        tests = self.tests[depth]
        for number in range(len(self.axes[depth].values)):
            index[depth] = number
            further = [order for order, rejects in tests if rejects(index)]
            self.visit(depth + 1, index, (*violated, *further) if further else violated)

    def _arrive(self, index: Index, violated: tuple[int, ...]) -> None:
        if not violated:
            self.passing.append(index)
            return
        key = tuple(sorted(violated))
        count, first = self.rejected.get(key, (0, index))
        self.rejected[key] = (count + 1, first)

    def memoized(self, rule: Rule, by: tuple[int, ...]) -> Callable[[list[int]], bool]:
        """Return a function that tests a point and caches the result for each combination of the axes `by`."""
        evaluate = self._evaluate(rule)
        results: dict[object, bool] = {}
        only = by[0] if len(by) == 1 else None

        def rejects(index: list[int]) -> bool:
            key = index[only] if only is not None else tuple([index[number] for number in by])
            result = results.get(key)  # most points differ only in axes that the rule does not read
            if result is None:
                result = results[key] = evaluate(index)
            return result

        return rejects

    def _evaluate(self, rule: Rule) -> Callable[[Sequence[int]], bool]:
        """Return the rule as a function of a point.

        If its fields are axes themselves, the test is called directly. Otherwise sections are copied for each call.
        """
        axis_numbers = {axis.path: number for number, axis in enumerate(self.axes)}
        if not all(self._plain(path, axis_numbers) for path in rule.fields):
            return lambda index: bool(self.problems_at(rule, index))
        sections, facts = self._at((0,) * len(self.axes))
        fixed = {**sections, "facts": facts}
        if not applies(rule, fixed):
            return lambda index: False
        values = {path: None if path in axis_numbers else value_at(path, fixed) for path in rule.fields}
        moving = [
            (path, axis_numbers[path], self.axes[axis_numbers[path]].values)
            for path in rule.fields
            if path in axis_numbers
        ]

        def evaluate(index: Sequence[int]) -> bool:
            for path, number, choices in moving:
                values[path] = choices[index[number]]
            return Rule.message(rule, values) is not None

        return evaluate

    def _plain(self, path: str, axis_numbers: Mapping[str, int]) -> bool:
        """Return True if a path is an axis and always set, or is not affected by any axis."""
        if path not in axis_numbers:
            return not any(_overlap(path, axis.path) for axis in self.axes)
        section, _, leaf = path.partition(".")
        return bool(leaf) and (section != "facts" or None not in self.axes[axis_numbers[path]].values)

    def _at(self, index: Sequence[int]) -> tuple[dict[str, object], Mapping[str, object]]:
        """Return the sections that are set, and the facts, at a point."""
        sections = at_point({**self.sections, "facts": self.facts}, self.axes, index)
        facts: Any = sections.pop("facts")
        return {name: section for name, section in sections.items() if section is not None}, facts

    def problems_at(self, rule: Rule, index: Sequence[int]) -> list[Problem]:
        """Return the problems that a rule reports at a point."""
        sections, facts = self._at(index)
        return check(sections, [rule], facts=facts)
