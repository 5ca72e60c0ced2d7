"""Base class for sections that rejects names of unknown fields."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from mb_schema.secrets import masked


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

    def _repr_html_(self) -> str:
        """Return the fields for a notebook: a table of those that differ from their defaults, the others collapsed."""
        return fields_html(self)

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


_LONGEST = 200


def fields_html(section: Any) -> str:
    """Return the fields of a dataclass as HTML without colours, for light and dark notebooks.

    Fields that are not part of the repr, which may be secrets, are left out, and values of secret names are masked.
    """
    changed = dict(_rows(section, changed=True))
    others = dict(_rows(section, changed=False))
    name = escape(type(section).__name__)
    table = _table(changed) if changed else "<p>All fields have their defaults.</p>"
    rest = f"<details><summary>{len(others)} defaults</summary>{_table(others)}</details>" if others else ""
    return f"<div><strong>{name}</strong>{table}{rest}</div>"


def _rows(section: Any, *, changed: bool) -> Iterator[tuple[str, str]]:
    for item in fields(section) if is_dataclass(section) else ():
        value = getattr(section, item.name)
        if item.repr and (_default(item) != value) == changed:
            yield item.name, _cell(item.name, value)


def _default(item: Field[Any]) -> object:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def _cell(name: str, value: object) -> str:
    if is_dataclass(value) and not isinstance(value, type) and hasattr(value, "_repr_html_"):
        return f"<details><summary>{escape(type(value).__name__)}</summary>{value._repr_html_()}</details>"
    text = repr(masked(name, value))
    return f"<code>{escape(text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...')}</code>"


def _table(rows: Mapping[str, str]) -> str:
    body = "".join(
        f'<tr><td style="text-align:left">{escape(name)}</td><td style="text-align:left">{cell}</td></tr>'
        for name, cell in rows.items()
    )
    return f"<table><tbody>{body}</tbody></table>"


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
