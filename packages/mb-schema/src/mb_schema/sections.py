"""Base class for sections: rejects names of unknown fields, and records which fields were set."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, InitVar, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from html import escape
from itertools import takewhile
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


class SetFields(dict[str, tuple[str, Any]]):
    """Names of the fields that were set, each with who set it and with a copy of a list or mapping as it then was."""


SET_IN_CODE: tuple[str, Any] = ("code", None)
"""Entry of a field that was passed to the constructor or assigned, outside of a recipe."""


@dataclass(init=False, repr=False, eq=False)
class StrictFields:
    """Base for dataclasses whose attributes are their fields.

    Assigning another name, or passing one to the constructor, raises `UnknownFieldError`. Properties and other
    attributes of the class can be assigned as Python defines, and so can names that begin with an underscore. A
    subclass adds names by declaring fields or annotating them.

    A dtype of torch becomes its name, such as "bfloat16".

    `_given` records the fields that are passed to the constructor or assigned later, also those that are equal to
    their default. What `__post_init__` assigns does not count. Every kind of copy keeps the record.
    """

    __slots__ = ()
    checks_types: ClassVar[bool] = True
    """A check of the configuration compares values with the annotations of the fields."""

    def _repr_html_(self) -> str:
        """Return the fields for a notebook: a table of those that differ from their defaults, the others collapsed."""
        return fields_html(self)

    if TYPE_CHECKING:  # a type checker would take any name for valid
        _given: ClassVar[SetFields]
    else:
        # `dataclasses.replace` passes the changes first, then the values of the original in the order of the fields,
        # where this pseudo-field is the first one: it passes the record on, and what is before it was changed.
        _given: InitVar[SetFields] = field(default=SetFields(), kw_only=True)

        def __init_subclass__(cls, **options: Any) -> None:
            """Let `__post_init__` compute fields without setting them."""
            super().__init_subclass__(**options)
            finish = getattr(cls, "__post_init__", None)
            if finish is not None and not hasattr(finish, "sets_nothing"):
                cls.__post_init__ = _computing(finish)

        def __new__(cls, *args: Any, **values: Any) -> Any:
            """Reject unknown names before the constructor runs, and record the others."""
            reject_unknown(cls, values)
            section = super().__new__(cls)
            names = [*_positional(cls)[: len(args)], *takewhile(lambda name: name != "_given", values)]
            chosen = {name: SET_IN_CODE for name in names if name in _field_names(cls)}
            object.__setattr__(section, "_given", SetFields({**values.get("_given", {}), **chosen}))
            return section

        def __setattr__(self, name: str, value: Any) -> None:
            cls = type(self)
            if not (name.startswith("_") or hasattr(cls, name) or name in _field_names(cls)):
                raise UnknownFieldError(cls, name)
            # the first assignment is the constructor's
            later = name in vars(self) and not name.startswith("_")
            super().__setattr__(name, _plain(value))
            if later:
                object.__setattr__(self, "_given", SetFields({**self._given, name: SET_IN_CODE}))


StrictFields.__annotations__.pop("_given", None)  # Python 3.10 finds no type hints of a class with it


def _plain(value: Any) -> Any:
    """Return the name of a dtype of torch, such as "bfloat16", as sections hold it; any other value unchanged."""
    kind = type(value)
    is_dtype = kind.__name__ == "dtype" and kind.__module__ == "torch"
    return str(value).removeprefix("torch.") if is_dtype else value


def _computing(finish: Any) -> Any:
    """Return a `__post_init__` that does not take the record, and whose assignments are not recorded."""

    @wraps(finish)
    def compute(self: Any, *values: Any) -> None:
        given = self._given
        finish(self, *(value for value in values if not isinstance(value, SetFields)))
        object.__setattr__(self, "_given", given)

    vars(compute)["sets_nothing"] = True
    return compute


def _positional(cls: Any) -> list[str]:
    """Return the names of the fields that the constructor takes by position."""
    return [item.name for item in fields(cls) if item.init and not item.kw_only]


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


def take_aliases(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Remove arguments that name properties of a class that can be assigned from `values`, and return them."""

    def can_be_assigned(name: str) -> bool:
        found = getattr(cls, name, None)
        return isinstance(found, property) and found.fset is not None

    return {name: values.pop(name) for name in [*values] if can_be_assigned(name)}


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
