"""Type check of the values in sections. Values set in Python are checked like values of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from mb_config.errors import WrongTypeError
from mb_config.preflight.problems import OriginLookup, check, concerns
from mb_config.rules.external_fields import EXTERNAL_FIELDS
from mb_config.rules.types import WRONG_TYPE
from mb_schema.rules import NOTHING, Problem, Rule
from mb_schema.value_types import MismatchError, fit, hints, is_open, mismatches


def check_config(
    config: Any,
    rules: Iterable[Rule],
    *,
    sections: Mapping[str, object],
    facts: Mapping[str, object] = NOTHING,
    provenance: OriginLookup | None = None,
) -> list[Problem]:
    """Return every problem of a container: values of a wrong type, then violated rules. Does not modify anything.

    Rules that read a value of a wrong type are skipped.

    Args:
        config: The container.
        rules: As for `check`, with the arguments below.
        sections: Its sections by name.
        facts: Values that no section contains.
        provenance: Origins of the values.
    """
    wrong = wrong_types(config, provenance=provenance)
    wrong_paths = [problem.fields[0] for problem in wrong]

    readable = [rule for rule in rules if not any(concerns(rule, path) for path in wrong_paths)]
    return [*wrong, *check(sections, readable, facts=facts, provenance=provenance)]


def wrong_types(config: Any, *, provenance: OriginLookup | None = None) -> list[Problem]:
    """Return a problem for each value of a wrong type in a container and its sections."""
    found = (WrongTypeError(error.value, error.expected, path=error.path) for error in _mismatches(config))
    return [
        Problem(
            id=WRONG_TYPE.id,
            fields=(error.path,),
            message=error.message,
            why=WRONG_TYPE.why,
            fix=WRONG_TYPE.fix,
            origin={} if provenance is None else {error.path: provenance.origin(error.path)},
        )
        for error in found
    ]


def _mismatches(config: Any) -> Iterator[MismatchError]:
    """Yield the errors in the sections of a container, and in the values of plain mappings that rules read."""
    yield from mismatches(config)
    cls: Any = type(config)
    for name in _open_fields(cls):
        section = getattr(config, name)
        if not _is_section(section):
            yield MismatchError(section, "a section", path=name)
        if isinstance(section, Mapping):
            yield from mapping_mismatches(section, name=name)


@cache
def _open_fields(cls: Any) -> tuple[str, ...]:
    """Return the fields of a container that accept any type."""
    annotations = hints(cls)
    return tuple(item.name for item in fields(cls) if is_open(annotations[item.name]))


def mapping_mismatches(section: Mapping[str, Any], *, name: str) -> Iterator[MismatchError]:
    """Yield the errors in the values of a plain mapping that rules of this package read."""
    for path, annotation in EXTERNAL_FIELDS.items():
        owner, _, leaf = path.partition(".")
        if owner == name and leaf in section:
            try:
                fit(section[leaf], annotation, path=path)
            except MismatchError as error:
                yield error


def _is_section(value: object) -> bool:
    """Return True for None, a mapping and an object with attributes."""
    return value is None or isinstance(value, Mapping) or (hasattr(value, "__dict__") and not callable(value))
