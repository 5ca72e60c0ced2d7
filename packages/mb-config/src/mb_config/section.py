"""Base class of the sections: dataclasses that record which of their fields were set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar

from mb_schema.secrets import masked
from mb_schema.sections import StrictFields

T = TypeVar("T", bound="Section")


class Section(StrictFields):
    """Base class that records the fields that are passed to the constructor or assigned later.

    A field counts as set even if its value equals the default: `OptimizerConfig(bf16=False)` sets a field,
    `OptimizerConfig()` does not. Copies keep the record; equality ignores it. The `repr` of a section masks secrets.
    A dtype of torch becomes its name.
    """

    _given: frozenset[str]

    def __init_subclass__(cls) -> None:
        """Define `__repr__` before the dataclass decorator would add one."""
        super().__init_subclass__()
        if "__repr__" not in vars(cls):
            cls.__repr__ = _text  # type: ignore[method-assign]

    def __new__(cls: type[T], *args: object, **kwargs: object) -> T:
        """Record the names of the arguments."""
        section = super().__new__(cls, *args, **kwargs)
        object.__setattr__(section, "_given", frozenset(kwargs))
        return section

    def __setattr__(self, name: str, value: object) -> None:
        later = name in vars(self)  # the first assignment is made by the constructor
        super().__setattr__(name, dtype_name(value))
        if later:
            object.__setattr__(self, "_given", self._given | {name})


def dtype_name(value: object) -> object:
    """Return the name of a dtype of torch, such as "bfloat16" for `torch.bfloat16`; any other value unchanged."""
    is_dtype = type(value).__module__ == "torch" and type(value).__name__ == "dtype"
    return str(value).removeprefix("torch.") if is_dtype else value


def given_fields(section: object) -> frozenset[str]:
    """Return the names of the fields that were set.

    A section of another package may have such a record as well: a set of names in `_given`. For dataclasses without
    one, the fields whose value differs from the class default are returned.
    """
    if not is_dataclass(section) or isinstance(section, type):
        return frozenset()
    record = _record(section)
    if record is not None:
        return record
    return frozenset(f.name for f in fields(section) if not _is_default(f, getattr(section, f.name)))


def set_given(section: object, names: Iterable[str]) -> None:
    """Replace the record of `section`, for readers that know which fields are in a file."""
    if _record(section) is not None:
        object.__setattr__(section, "_given", frozenset(names))


def assign_computed(section: object, name: str, value: object) -> None:
    """Assign a computed value. It does not count as set."""
    with unrecorded(section):
        setattr(section, name, value)


@contextmanager
def unrecorded(*sections: object) -> Iterator[None]:
    """Return a context manager in which assignments to `sections` do not count as set."""
    before = [(section, given_fields(section)) for section in sections if _record(section) is not None]
    try:
        yield
    finally:
        for section, given in before:
            set_given(section, given)


def _text(section: Any) -> str:
    """Return the `repr` of a dataclass with secrets masked, including those of nested dataclasses."""
    parts = []
    for field in fields(section):
        value = getattr(section, field.name)
        inner = is_dataclass(value) and not isinstance(value, type)
        parts.append(f"{field.name}={_text(value) if inner else repr(masked(field.name, value))}")
    return f"{type(section).__qualname__}({', '.join(parts)})"


def _record(section: object) -> frozenset[str] | None:
    """Return the names of the fields that were set; None for an object that does not record them."""
    record = getattr(section, "_given", None)
    return frozenset(record) if isinstance(record, frozenset | set) else None


def _is_default(field: Field[Any], value: object) -> bool:
    if field.default is not MISSING:
        return bool(value == field.default)
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return False
