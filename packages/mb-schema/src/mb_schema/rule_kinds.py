"""Constructors of rules of common kinds: a value of a set, within bounds, required by another, without effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from string import ascii_lowercase
from typing import Any, Literal

from mb_schema.rules import FILE_WORDS, NOTHING, Rule

Severity = Literal["error", "warning"]

NOT_IMPLEMENTED = (
    "this option is not implemented yet; ignoring it silently would hide the problem until the run is in progress"
)  # fmt: skip
"""Reason of a rule that rejects an option without an implementation."""

DEGREES: Mapping[str, str] = {
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "vp": "model.virtual_pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
}
"""Parameters of a test that are parallel sizes of the model, and their paths."""


@dataclass(frozen=True, slots=True)
class Match:
    """Set of values in a condition. A condition may also be a value: True and False are any true or false value."""

    test: Callable[[Any], bool]
    """Function that returns whether a value belongs to the set."""
    text: str
    """Description with `{}` for the name of the field, such as "{}>=1"."""

    def __call__(self, value: object) -> bool:
        """Return whether the value belongs to the set."""
        return self.test(value)


SET = Match(lambda value: value is not None, "{}")
"""Any value but None."""


def among(*values: object) -> Match:
    """Return the condition that a field has one of these values."""
    return Match(lambda value: value in values, f"{{}}={' or '.join(map(shown, values))}")


def other_than(*values: object) -> Match:
    """Return the condition that a field has none of these values."""
    return Match(lambda value: value not in values, f"{{}} other than {' or '.join(map(shown, values))}")


def above(limit: float) -> Match:
    """Return the condition that a number is set and greater than a limit."""
    return Match(lambda value: value is not None and value > limit, f"{{}}>{limit}")


def shown(value: object) -> str:
    """Return a value as a file would contain it, with simple text unquoted."""
    if isinstance(value, bool) or value is None:
        return FILE_WORDS[str(value)]
    return repr(value) if isinstance(value, str) and not re.fullmatch(r"\S+", value) else str(value)


def assigned(values: Mapping[str, object]) -> str:
    """Return values by name as a file would contain them, such as `fp8=hybrid, fp4=null`."""
    return ", ".join(f"{name}={shown(value)}" for name, value in values.items())


def within(section: str, names: str) -> tuple[str, ...]:
    """Return the paths of several fields of one section; the names are separated by spaces."""
    return tuple(f"{section}.{name}" for name in names.split())


def section_rule(  # noqa: PLR0913 (the fields of the record)
    section: str,
    id: str,
    *,
    why: str,
    fix: str,
    fails: Mapping[str, object],
    passes: Mapping[str, object],
    paths: Mapping[str, str] = NOTHING,
    others: Iterable[str] = (),
    severity: Severity = "error",
    fallback: Mapping[str, object] = NOTHING,
    implied_by: str = "",
) -> Callable[[Callable[..., str | None]], Rule]:
    """Return a decorator that makes a rule of a condition, whose parameters are the fields that the rule reads.

    The condition is a function that returns None, or a description of the problem. It receives the values by keyword.
    A parameter `name` is the field of that name in `section`, and `other__name` one of another section; parameters
    after `*` are facts. `tp`, `pp`, `vp`, `cp`, `ep` and `etp` are the parallel sizes of the model (`DEGREES`).
    `**values` receives the values of `others` by name.

    Args:
        section: Section of the parameters that name none; empty for a configuration's own fields, such as `perf`.
            Messages are about the first parameter.
        id: Identifier.
        why: Reason.
        fix: Instruction.
        fails: Example, parameter to value, that the rule rejects. Other parameters are None.
        passes: Values that differ from those of `fails` in an example that the rule accepts.
        paths: Paths of parameters that are not called like their field, as in a condition of several rules.
        others: Further fields, named like parameters or by path, such as the keys of a table.
        severity: Severity.
        fallback: Parameter to the value that replaces a rejected one of a recipe or a default.
        implied_by: Ids of rules, separated by spaces; if one of them is violated, `check` leaves this one out.
    """

    def of(test: Callable[..., str | None]) -> Rule:
        code = test.__code__
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = (*parameters, *others)
        fields = {name: _path(section, name) for name in names}
        fields |= {name: f"facts.{name}" for name in parameters[code.co_argcount :]}
        fields |= paths
        if unknown := {*fields, *fails, *passes, *fallback}.difference(names):
            raise ValueError(
                f"rule {id}: {', '.join(sorted(unknown))} is no parameter of {test.__name__} ({', '.join(names)}), "
                "because paths and examples are given by the names of parameters. Correct the name."
            )
        failing = {fields[name]: fails[name] for name in names if name in fails}
        return Rule(
            id=id,
            fields=tuple(fields.values()),
            test=test,
            parameters=names,
            why=why,
            fix=fix,
            severity=severity,
            fails=failing,
            passes={**failing, **{fields[name]: value for name, value in passes.items()}},
            fallback={fields[name]: value for name, value in fallback.items()},
            implied_by=tuple(implied_by.split()),
        )

    return of


config_rule = partial(section_rule, "")
"""`section_rule` of a configuration's own fields; those below are for sections that rules of several files read."""
model_rule = partial(section_rule, "model")
dataset_rule = partial(section_rule, "dataset")
ddp_rule = partial(section_rule, "ddp")
dist_rule = partial(section_rule, "dist")
facts_rule = partial(section_rule, "facts")
optimizer_rule = partial(section_rule, "optimizer")
train_rule = partial(section_rule, "train")
validation_rule = partial(section_rule, "validation")


def _path(section: str, name: str) -> str:
    if name in DEGREES:
        return DEGREES[name]
    path = name.replace("__", ".")
    return path if "." in path or not section else f"{section}.{path}"


def one_of(
    id: str, path: str, choices: Sequence[object], *, why: str, fix: str, fails: object, passes: object = None
) -> Rule:
    """Return a rule that a field has one of several values. The example that passes is the first one by default."""
    names = ", ".join(shown(choice) for choice in choices if choice is not None)

    def test(value: object) -> str | None:
        return None if value in choices else f"must be one of {names} ({_named([path], [value])})"

    passing = choices[0] if passes is None else passes
    return _of_one_field(id, path, test, why=why, fix=fix, fails=fails, passes=passing)


def in_range(  # noqa: PLR0913 (four bounds, and the fields of the record)
    id: str,
    path: str,
    low: float = -inf,
    high: float = inf,
    *,
    above: float = -inf,
    below: float = inf,
    why: str,
    fix: str = "",
    fails: object = None,
    passes: object = None,
) -> Rule:
    """Return a rule that a number is at least `low`, at most `high`, above `above` and less than `below`.

    None is accepted. The examples are the numbers at the bounds, and the fix names the bounds, by default.
    """
    lower = f"at least {low}" if low > -inf else f"above {above}"
    upper = f"at most {high}" if high < inf else f"less than {below}"
    bounds = " and ".join(text for text in (lower, upper) if not text.endswith("inf"))
    span = f"a number {bounds}"
    if low > -inf and upper == "less than inf":
        span = f"{low} or more"
    elif low > -inf and high < inf:
        bounds, span = f"from {low} to {high}", f"{low} to {high}"
    outside = next(n for n in (low - 1, above, high + 1, below) if abs(n) < inf)
    inside = next(n for n in (low, high, above + 1, below - 1) if abs(n) < inf)

    def test(value: float | None) -> str | None:
        fits = value is None or (
            low <= value <= high and (value > above or above == -inf) and (value < below or below == inf)
        )
        return None if fits else f"must be {bounds} ({_named([path], [value])})"

    return _of_one_field(
        id,
        path,
        test,
        why=why,
        fix=fix or f"Set {path} to {span}.",
        fails=outside if fails is None else fails,
        passes=inside if passes is None else passes,
    )


def lettered(number: str, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield an id and a path for each rule of a kind on several fields; the ids are `number` with a letter appended.

    Raises:
        IndexError: There are more than 26 fields.
    """
    for index, path in enumerate(paths):
        yield f"{number}{ascii_lowercase[index]}", path


def excludes(
    id: str,
    conditions: Mapping[str, object],
    *,
    why: str,
    fix: str,
    fails: Mapping[str, object] = NOTHING,
    passes: Mapping[str, object] = NOTHING,
    severity: Severity = "error",
    fallback: Mapping[str, object] = NOTHING,
) -> Rule:
    """Return a rule that fields do not satisfy these conditions, path to value or `Match`, at the same time.

    The examples are the conditions, and the same without the first one; `fails` and `passes` hold what differs.
    """
    first, *others = conditions
    rest = " and ".join(_leaf(path, first) for path in others)

    def test(*values: object) -> str | None:
        if not all(
            _matches(value, wanted) for value, wanted in zip(values, conditions.values(), strict=True)
        ):
            return None
        return f"cannot be combined with {rest} ({_named(conditions, values)})"

    failing = {**_values(conditions), **fails}
    return Rule(
        id=id,
        fields=(*conditions,),
        test=test,
        why=why,
        fix=fix,
        severity=severity,
        fails=failing,
        passes={**failing, first: _other(conditions[first]), **passes},
        fallback=fallback,
    )


def requires(  # noqa: PLR0913 (the fields of the record)
    id: str,
    when: Mapping[str, object],
    needs: Mapping[str, object],
    *,
    why: str,
    fix: str,
    fails: Mapping[str, object] = NOTHING,
    passes: Mapping[str, object] = NOTHING,
    severity: Severity = "error",
    fallback: Mapping[str, object] = NOTHING,
    implied_by: str = "",
) -> Rule:
    """Return a rule that fields which satisfy the conditions `when` come with others that satisfy `needs`.

    The examples are `when` without the first of `needs`, and with all of them; `fails` and `passes` hold what differs.
    """
    first, paths = next(iter(when)), (*when, *needs)
    wanted = " and ".join(_condition(_leaf(path, first), match) for path, match in needs.items())

    def test(*values: object) -> str | None:
        given, needed = values[: len(when)], values[len(when) :]
        on = all(_matches(value, match) for value, match in zip(given, when.values(), strict=True))
        met = all(_matches(value, match) for value, match in zip(needed, needs.values(), strict=True))
        return f"requires {wanted} ({_named(paths, values)})" if on and not met else None

    lacking = next(iter(needs))
    failing = {**_values(when), lacking: _other(needs[lacking]), **fails}
    return Rule(
        id=id,
        fields=paths,
        test=test,
        why=why,
        fix=fix,
        severity=severity,
        fails=failing,
        passes={**failing, **_values(needs), **passes},
        fallback=fallback,
        implied_by=tuple(implied_by.split()),
    )


def at_most(id: str, path: str, most: int, *, why: str) -> Rule:
    """Return a rule that a size, which may be very large, has at most a value that no machine exceeds."""

    def test(size: int | None) -> str | None:
        return f"is {size:,}, more than {most:,}" if size is not None and size > most else None

    fix = f"Set {path.removeprefix('facts.')} to at most {most:,}."
    return _of_one_field(
        id, path, test, why=why, fix=fix, fails=10**13, passes=4096 if most > 10_000 else 128
    )


def no_effect(
    id: str,
    switch: str,
    defaults: Mapping[str, object],
    *,
    why: str,
    fix: str,
    fails: Mapping[str, object],
    passes: Mapping[str, object] = NOTHING,
    severity: Severity = "error",
) -> Rule:
    """Return a rule that rejects settings which differ from their defaults while the field `switch` is off.

    The examples are the defaults with what `fails` changes, with the switch off and on; `passes` holds its value if
    that is not true.
    """

    def test(on: object, *values: object) -> str | None:
        changed = {
            path: value
            for (path, default), value in zip(defaults.items(), values, strict=True)
            if value != default and not on
        }
        if not changed:
            return None
        return f"leaves other settings without effect ({_named([switch, *changed], [on, *changed.values()])})"

    on = {switch: True, **passes}
    failing = {switch: _other(on[switch]), **defaults, **fails}
    return Rule(
        id=id,
        fields=(switch, *defaults),
        test=test,
        why=why,
        fix=fix,
        severity=severity,
        fails=failing,
        passes={**failing, **on},
    )


def needs_package(
    id: str, paths: Sequence[str], package: str, *, fact: str, why: str, fix: str, example: object = True
) -> Rule:
    """Return a rule that rejects settings if the package that they need is not installed.

    Args:
        id: Identifier.
        paths: Fields, any of which requires the package if it has a true value.
        package: Name of the distribution.
        fact: Name of the fact, such as `wandb_installed`.
        why: Reason.
        fix: Instruction.
        example: Value of the first field in the examples; the others are None.
    """

    def test(*values: object) -> str | None:
        *settings, installed = values
        on = {path: value for path, value in zip(paths, settings, strict=True) if value}
        if not on or installed:
            return None
        return f"requires {package}, which is not installed ({_named([*on], [*on.values()])})"

    fields = (*paths, f"facts.{fact}")
    failing = {**dict.fromkeys(paths), paths[0]: example, fields[-1]: False}
    passing = {**failing, fields[-1]: True}
    return Rule(id=id, fields=fields, test=test, why=why, fix=fix, fails=failing, passes=passing)


def unsupported(
    id: str, path: str, neutral: object, *, fails: object, why: str = NOT_IMPLEMENTED, fix: str = ""
) -> Rule:
    """Return a rule that rejects every value of a field but None and its neutral value."""

    def test(value: object) -> str | None:
        accepted = value is None or value == neutral
        return None if accepted else f"is not supported ({_named([path], [value])})"

    advice = fix or f"Leave it at {shown(neutral)}."
    return _of_one_field(id, path, test, why=why, fix=advice, fails=fails, passes=neutral)


def _of_one_field(
    id: str,
    path: str,
    test: Callable[[Any], str | None],
    *,
    why: str,
    fix: str,
    fails: object,
    passes: object,
) -> Rule:
    """Return a rule on one field, whose examples are values of it."""
    return Rule(
        id=id, fields=(path,), test=test, why=why, fix=fix, fails={path: fails}, passes={path: passes}
    )


def _values(conditions: Mapping[str, object]) -> dict[str, object]:
    """Return the conditions that are values, with 1 for a condition that accepts any value."""
    values = {path: 1 if wanted is SET else wanted for path, wanted in conditions.items()}
    return {path: value for path, value in values.items() if not isinstance(value, Match)}


def _other(wanted: object) -> bool | None:
    """Return a value that a condition rejects: the other one of True and False, or None."""
    return not wanted if isinstance(wanted, bool) else None


def _matches(value: object, wanted: object) -> bool:
    if isinstance(wanted, bool):
        return bool(value) is wanted
    return wanted(value) if isinstance(wanted, Match) else value == wanted


def _condition(name: str, wanted: object) -> str:
    if isinstance(wanted, Match):
        return wanted.text.format(name)
    return name if wanted is True else f"{name}={shown(wanted)}"


def _leaf(path: str, first: str) -> str:
    """Return the name of a field, with its section if that is not the section of the first field."""
    section, _, name = path.partition(".")
    return name if name and section in (first.partition(".")[0], "facts") else path


def _named(paths: Iterable[str], values: Iterable[object]) -> str:
    """Return values with the names of their fields, as in `fp8=hybrid, fp4=null`."""
    names = [*paths]
    return assigned({_leaf(path, names[0]): value for path, value in zip(names, values, strict=True)})
