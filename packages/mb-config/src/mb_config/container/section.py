"""Base class of the sections, and the record of the fields that were set in sections of any package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from mb_schema.secrets import masked
from mb_schema.sections import SET_IN_CODE, SetFields, StrictFields


class Section(StrictFields):
    """Base class whose `repr` masks secrets.

    Equality ignores the record of the fields that were set.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Define `__repr__` before the dataclass decorator would add one."""
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = _text  # type: ignore[method-assign]


def given_fields(section: object) -> frozenset[str]:
    """Return the names of the fields that were set.

    A field counts as set even if its value equals the default: `OptimizerConfig(bf16=False)` sets a field,
    `OptimizerConfig()` does not. A list or mapping that was modified in place counts as set. A section of another
    package may have such a record as well: a set of names in `_given`. For dataclasses without one, the fields whose
    value differs from the class default are returned.
    """
    return frozenset(given_record(section))


def given_record(section: Any) -> dict[str, tuple[str, Any]]:
    """Return who set each field that was set, with a copy of a list or mapping as it then was, or None."""
    if not is_dataclass(section) or isinstance(section, type):
        return {}
    record = _record(section)
    known = {} if record is None else record
    names = [item.name for item in fields(section) if item.init]
    changed = {
        item.name: SET_IN_CODE
        for item in fields(section)
        if (record is None or container_copy(getattr(section, item.name)) is not None)
        and getattr(section, item.name) != field_default(item)
    }
    return {name: found for name in names if (found := known.get(name, changed.get(name))) is not None}


def set_given(section: object, names: Iterable[str]) -> None:
    """Replace the record of `section`, for readers that know which fields are in a file."""
    if _record(section) is not None:
        object.__setattr__(section, "_given", SetFields(dict.fromkeys(names, SET_IN_CODE)))


def set_by(section: Any, origin: str) -> None:
    """Record that the fields that were set, here and in the sections inside, were set by `origin`."""
    if isinstance(section, Mapping | list | tuple):
        for value in section.values() if isinstance(section, Mapping) else section:
            set_by(value, origin)
    elif is_dataclass(section) and not isinstance(section, type):
        if _record(section) is not None:
            given = {name: (origin, container_copy(getattr(section, name))) for name in given_record(section)}
            object.__setattr__(section, "_given", SetFields(given))
        for item in fields(section):
            set_by(getattr(section, item.name), origin)


def assign_computed(section: object, name: str, value: object) -> None:
    """Assign a computed value. It does not count as set."""
    with unrecorded(section):
        setattr(section, name, value)


@contextmanager
def unrecorded(*sections: object) -> Iterator[None]:
    """Return a context manager in which assignments to `sections` do not count as set."""
    before = [(section, vars(section)["_given"]) for section in sections if _record(section) is not None]
    try:
        yield
    finally:
        for section, given in before:
            object.__setattr__(section, "_given", given)


def _text(section: Any) -> str:
    """Return the `repr` of a dataclass with secrets masked, including those of nested dataclasses."""
    parts = []
    for field in fields(section):
        value = getattr(section, field.name)
        inner = is_dataclass(value) and not isinstance(value, type)
        parts.append(f"{field.name}={_text(value) if inner else repr(masked(field.name, value))}")
    return f"{type(section).__qualname__}({', '.join(parts)})"


def _record(section: object) -> Mapping[str, tuple[str, Any]] | None:
    """Return the fields that were set; None for an object that does not record them."""
    record = vars(section).get("_given") if hasattr(section, "__dict__") else None
    return dict.fromkeys(record, SET_IN_CODE) if isinstance(record, frozenset | set) else record


def container_copy(value: Any) -> Any:
    """Return a copy of lists and mappings, with the same objects inside; None for any other value."""
    if isinstance(value, Mapping):
        return {
            key: item if (inner := container_copy(item)) is None else inner for key, item in value.items()
        }
    if isinstance(value, list):
        return [item if (inner := container_copy(item)) is None else inner for item in value]
    return None


def field_default(item: Field[Any]) -> Any:
    """Return the default of a field, or MISSING if it has none."""
    return item.default if item.default_factory is MISSING else item.default_factory()
