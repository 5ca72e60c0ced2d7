"""The base of every section: a dataclass that remembers which of its fields somebody chose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar

from mb_config.masking import masked
from mb_config.strict_fields import StrictFields

T = TypeVar("T", bound="Section")


class Section(StrictFields):
    """Remembers the names given to the constructor or assigned later.

    A name counts as given whether or not its value equals the default: `DistributedDataParallelConfig(
    grad_reduce_in_fp32=False)` is a wish, `DistributedDataParallelConfig()` is none. Copies keep the record;
    equality ignores it. The text of a section (`repr`) holds no secret in clear.
    """

    _given: frozenset[str]

    def __init_subclass__(cls) -> None:
        """Have a repr before the dataclass decorator would write one."""
        super().__init_subclass__()
        if "__repr__" not in vars(cls):
            cls.__repr__ = _text  # type: ignore[method-assign]

    def __new__(cls: type[T], *args: object, **kwargs: object) -> T:
        """Note the names of the arguments."""
        section = super().__new__(cls, *args, **kwargs)
        object.__setattr__(section, "_given", frozenset(kwargs))
        return section

    def __setattr__(self, name: str, value: object) -> None:
        later = name in vars(self)  # the first assignment is the constructor's own
        super().__setattr__(name, value)
        if later:
            object.__setattr__(self, "_given", self._given | {name})


def given_fields(section: object) -> frozenset[str]:
    """Names of the fields that somebody chose.

    A section of another package may keep its record too: as `_given`, a set of names. Of a dataclass that keeps none:
    the fields whose value differs from the class default.
    """
    if not is_dataclass(section) or isinstance(section, type):
        return frozenset()
    record = getattr(section, "_given", None)
    if isinstance(record, frozenset | set):
        return frozenset(record)
    return frozenset(f.name for f in fields(section) if not _is_default(f, getattr(section, f.name)))


def set_given(section: object, names: Iterable[str]) -> None:
    """Replace the record of `section` (a reader knows better than the constructor what was written)."""
    if _keeps_record(section):
        object.__setattr__(section, "_given", frozenset(names))


def assign_computed(section: object, name: str, value: object) -> None:
    """Assign a computed value: it does not count as given."""
    with unrecorded(section):
        setattr(section, name, value)


@contextmanager
def unrecorded(*sections: object) -> Iterator[None]:
    """While this is open, assignments to `sections` do not count as given."""
    before = [(section, given_fields(section)) for section in sections if _keeps_record(section)]
    try:
        yield
    finally:
        for section, given in before:
            set_given(section, given)


def _text(section: Any) -> str:
    """A dataclass as Python would write it, without secrets, its own and those of the dataclasses in it."""
    parts = []
    for field in fields(section):
        value = getattr(section, field.name)
        inner = is_dataclass(value) and not isinstance(value, type)
        parts.append(f"{field.name}={_text(value) if inner else repr(masked(field.name, value))}")
    return f"{type(section).__qualname__}({', '.join(parts)})"


def _keeps_record(section: object) -> bool:
    return isinstance(getattr(section, "_given", None), frozenset | set)


def _is_default(field: Field[Any], value: object) -> bool:
    if field.default is not MISSING:
        return bool(value == field.default)
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return False
