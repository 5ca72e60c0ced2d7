"""Base class for sections that rejects names of unknown fields. Every package with sections has an identical copy."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar


class UnknownFieldError(AttributeError, TypeError):
    """A section has no field of this name. `nearest` contains similar fields, the most similar first.

    It is an AttributeError, as Python raises for attributes, and a TypeError, as it raises for constructor arguments.
    """

    def __init__(self, section: type, field: str) -> None:
        names = [name for name in _field_names(section) if not name.startswith("_")]
        self.field = field
        self.nearest = tuple(get_close_matches(field[:100], names, n=3, cutoff=0.7))
        shown = field if len(field) <= 100 else f"{field[:100]}..."
        hint = f"Did you mean {' or '.join(self.nearest)}?" if self.nearest else "help() lists its fields."
        super().__init__(
            f"{shown}: {section.__name__} has no such field. {hint} "
            "Names of attributes that are not fields must begin with an underscore."
        )


class StrictFields:
    """Base for dataclasses whose attributes are their fields.

    Assigning another name, or passing one to the constructor, raises `UnknownFieldError`. Properties and other
    attributes of the class can be assigned as Python defines, and so can names that begin with an underscore. A
    subclass adds names by declaring fields or annotating them.
    """

    __slots__ = ()
    checks_types: ClassVar[bool] = True
    """A check of the configuration compares values with the annotations of the fields."""

    if not TYPE_CHECKING:  # a type checker would take any name for valid

        def __new__(cls, *args: Any, **values: Any) -> Any:
            """Reject unknown names before the constructor runs."""
            reject_unknown(cls, values)
            return super().__new__(cls)

        def __setattr__(self, name: str, value: Any) -> None:
            cls = type(self)
            if not (name.startswith("_") or hasattr(cls, name) or name in _field_names(cls)):
                raise UnknownFieldError(cls, name)
            super().__setattr__(name, value)


def reject_unknown(cls: type, names: Iterable[str]) -> None:
    """Reject names that the constructor of a dataclass does not take.

    Raises:
        UnknownFieldError: If a name is neither a field nor a parameter of a custom constructor.
    """
    for name in names:
        if name not in _field_names(cls) and not _is_parameter(cls, name):
            raise UnknownFieldError(cls, name)


def _field_names(cls: type) -> dict[str, Any]:
    """Return the fields and the annotated names of a class, including inherited ones."""
    annotated = {name: None for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}
    declared = dict.fromkeys(cls.__dataclass_fields__) if is_dataclass(cls) else {}
    return {**declared, **annotated}


def _is_parameter(cls: type, name: str) -> bool:
    """Return True for parameters of a custom constructor, and for aliases of a field, which are properties."""
    constructor = cls.__init__  # type: ignore[misc] # the class, not an instance
    parameters = inspect.signature(constructor).parameters
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    return hasattr(cls, name) or name in parameters or takes_any
