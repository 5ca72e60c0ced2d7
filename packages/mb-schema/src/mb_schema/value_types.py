"""Comparison of values in sections with their annotations."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from os import PathLike
from pathlib import Path
from typing import (
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from mb_schema.secrets import leaf, masked

Nested: TypeAlias = Callable[[Mapping[str, Any], tuple[type, ...], str], object]
"""Function that builds an object of one of these dataclasses from a mapping at a path."""

WHY = "the field does not accept this value"
FIX = "Set a value of the expected type."
_INTEGERS = range(-(2**63), 2**63)
"""Range that NumPy, torch and file formats support."""
_SHOWN = 200
_BUILT: dict[Any, Any] = {tuple: tuple, set: set, frozenset: frozenset, AbstractSet: frozenset}
"""Types of collections that a file holds as a list, and how they are built from it."""
_PLAIN = (str, bytes, int, float, complex, list, tuple, set, frozenset, Mapping, type, type(None))


class MismatchError(TypeError):
    """A value does not have the type `expected` of its field."""

    def __init__(self, value: object, expected: str, *, path: str) -> None:
        self.value, self.expected, self.path = value, expected, path
        super().__init__(f"{path}: expected {expected}, not {_shown(path, value)}, because {WHY}. {FIX}")


class FieldTypeError(TypeError, ValueError):
    """Values of a section do not have the types of their fields. The message has a line for each value."""


def reject_wrong_types(section: object, *, path: str) -> None:
    """Reject a section with values of a wrong type. `path` is its name in a configuration.

    Raises:
        FieldTypeError: If there are values of a wrong type.
    """
    lines = [str(error) for error in mismatches(section, path=path)]
    if lines:
        raise FieldTypeError("\n".join(lines))


def mismatches(section: Any, *, path: str = "") -> Iterator[MismatchError]:
    """Yield an error for each value of a wrong type in a section and the sections nested in it."""
    cls: Any = type(section)
    for name, annotation, exact in _fields(cls):
        value = getattr(section, name)
        kind = type(value)
        if kind in exact and (kind is not int or value in _INTEGERS):
            continue
        here = f"{path}.{name}" if path else name
        if getattr(kind, "checks_types", False) is True and is_dataclass(value):
            yield from mismatches(value, path=here)
        if isinstance(value, PathLike) and str in options(annotation):
            continue
        if not isinstance(value, _PLAIN) and _has_fields(value, dataclasses_of(annotation)):
            continue
        try:
            fit(value, annotation, path=here)
        except MismatchError as error:
            yield error


def hints(cls: Any) -> dict[str, Any]:
    """Return the resolved annotations of the fields of `cls`, including inherited ones."""
    if sys.version_info >= (3, 11):
        found = get_type_hints(cls)
    else:
        found = _hints_of_fields(cls) if is_dataclass(cls) else get_type_hints(cls)
    return found


def _hints_of_fields(cls: Any) -> dict[str, Any]:
    """Return the annotations of fields alone: Python 3.10 cannot resolve an InitVar that is written as text."""
    names = {item.name for item in fields(cls)}
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        own = {name: text for name, text in vars(base).get("__annotations__", {}).items() if name in names}
        holder: Any = types.SimpleNamespace(__annotations__=own)
        found |= get_type_hints(holder, vars(sys.modules[base.__module__]), dict(vars(base)))
    return found


def options(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or a tuple of the type itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def dataclasses_of(annotation: Any) -> tuple[type, ...]:
    """Return the dataclasses among the options of an annotation."""
    return tuple(o for o in options(annotation) if isinstance(o, type) and is_dataclass(o))


def is_open(annotation: Any) -> bool:
    """Return True for Any and object."""
    return any(option in (Any, object) for option in options(annotation))


def describe(annotation: Any) -> str:
    """Return a description of the type for error messages."""
    return " or ".join(_word(option) for option in options(annotation))


def fit(value: Any, annotation: Any, *, path: str, nested: Nested | None = None) -> Any:
    """Return the value converted to the type of the field.

    An int is converted to float, text to Path, a list to a tuple, and a name to an enum member. True is not accepted as
    an int, nor "3" as a number. A mapping for a dataclass is passed to `nested`.

    Raises:
        MismatchError: If the value does not match the type.
    """
    choices = options(annotation)
    if type(value) is int and int in choices and value not in _INTEGERS:
        raise MismatchError(value, "an integer of at most 64 bits", path=path)
    if is_open(annotation) or any(type(value) is choice for choice in choices):
        return value
    candidates = dataclasses_of(annotation)
    if candidates and isinstance(value, Mapping) and nested is not None:
        return nested(value, candidates, path)
    for choice in choices:
        try:
            return _fit_one(value, choice, path=path, nested=nested)
        except MismatchError as error:
            if len(choices) == 1 or error.path != path:
                raise
    raise MismatchError(value, describe(annotation), path=path)


def _fit_one(value: Any, choice: Any, *, path: str, nested: Nested | None) -> Any:
    """Return a value as one type requires it, by the kind of the type; see `fit`.

    Raises:
        MismatchError: The value is not of the type. A type that cannot be tested accepts every value.
    """
    origin = get_origin(choice)
    if choice in (None, type(None)):
        fits = value is None
    elif origin is Literal:
        fits = any(type(value) is type(member) and value == member for member in get_args(choice))
    elif origin is Final:
        return fit(value, *get_args(choice), path=path, nested=nested)
    elif origin is not None:
        return _fit_generic(value, choice, origin, path=path, nested=nested)
    elif is_typeddict(choice):
        return _fit_typed_dict(value, choice, path=path, nested=nested)
    elif not isinstance(choice, type):
        supertype = getattr(choice, "__supertype__", None)  # of a NewType
        if supertype is not None:
            return fit(value, supertype, path=path, nested=nested)
        fits = True  # a type variable or another construct that cannot be tested
    elif getattr(choice, "_is_protocol", False) and not getattr(choice, "_is_runtime_protocol", False):
        fits = True  # a Protocol that cannot be tested
    else:
        return _fit_class(value, choice, path=path)
    if not fits:
        raise MismatchError(value, _word(choice), path=path)
    return value


def _fit_class(value: Any, choice: type, *, path: str) -> Any:
    if choice is float and isinstance(value, int) and not isinstance(value, bool):
        return _as_float(value, path=path)
    if issubclass(choice, Path) and isinstance(value, str):
        return choice(value)
    if issubclass(choice, Enum) and not isinstance(value, choice):
        return _member(value, choice, path=path)
    if choice in _BUILT and isinstance(value, list):
        return _collected(value, choice, choice, path=path)
    if isinstance(value, choice) and (choice is bool or not isinstance(value, bool)):
        return value
    raise MismatchError(value, _word(choice), path=path)


def _as_float(value: int, *, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise MismatchError(value, "a number that fits a float", path=path) from None


def _member(value: Any, choice: type[Enum], *, path: str) -> Enum:
    for member in choice:
        if value == member.name or (type(value) is type(member.value) and value == member.value):
            return member
    raise MismatchError(value, _word(choice), path=path)


def _fit_generic(value: Any, choice: Any, origin: Any, *, path: str, nested: Nested | None) -> Any:
    """Return a value as a type with arguments requires it, such as `dict[str, int]` or `type[Optimizer]`.

    Raises:
        MismatchError: The value, or an item of it, is not of its type.
    """
    arguments = get_args(choice)
    if origin is type or (isinstance(origin, type) and issubclass(origin, Callable)):  # type: ignore[arg-type]
        if not callable(value):
            raise MismatchError(value, _word(choice), path=path)
        return value
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return _fit_mapping(value, arguments, path=path, nested=nested)
    if not hasattr(choice, "__args__"):  # typing.Set and others without the type of their items
        return _fit_class(value, origin, path=path)
    plain = isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes)
    if not isinstance(origin, type) or issubclass(origin, Mapping) or not plain:
        raise MismatchError(value, _word(choice), path=path)
    return _fit_items(value, choice, origin, path=path, nested=nested)


def _fit_mapping(
    value: Mapping[Any, Any], arguments: tuple[Any, ...], *, path: str, nested: Nested | None
) -> dict[Any, Any]:
    key_type, value_type = arguments or (Any, Any)
    return {
        fit_key(key, key_type, path=f"{path}.{key}"): fit(
            item, value_type, path=f"{path}.{key}", nested=nested
        )
        for key, item in value.items()
    }


def fit_key(key: Any, annotation: Any, *, path: str) -> Any:
    """Return the key of a mapping converted to its type; text, as in JSON and on a command line, becomes a number."""
    try:
        return fit(key, annotation, path=path)
    except MismatchError:
        kinds = [kind for kind in (int, float) if isinstance(key, str) and kind in options(annotation)]
        for kind in kinds:
            try:
                number = kind(key)
            except ValueError:
                continue
            if str(number) == key:
                return fit(number, annotation, path=path)
        raise


def _fit_typed_dict(value: Any, choice: Any, *, path: str, nested: Nested | None) -> dict[str, Any]:
    """Return a mapping with the keys of a TypedDict, each value converted to its type."""
    types = hints(choice)
    if not isinstance(value, Mapping) or not {*choice.__required_keys__} <= {*value} <= {*types}:
        raise MismatchError(value, f"{choice.__name__}, a mapping of {', '.join(types)}", path=path)
    return {key: fit(item, types[key], path=f"{path}.{key}", nested=nested) for key, item in value.items()}


def _fit_items(value: Any, choice: Any, origin: type, *, path: str, nested: Nested | None) -> Any:
    arguments = get_args(choice)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(arguments) != len(value):
            raise MismatchError(value, _word(choice), path=path)
    else:
        arguments = arguments[:1] * len(value)
    items = [
        fit(item, kind, path=f"{path}[{index}]", nested=nested)
        for index, (item, kind) in enumerate(zip(value, arguments, strict=True))
    ]
    return _collected(items, choice, origin, path=path)


def _collected(items: list[Any], choice: Any, origin: Any, *, path: str) -> Any:
    """Return the items in a collection of the type `origin`, or as a list."""
    try:
        return _BUILT.get(origin, list)(items)
    except TypeError:  # an item that has no hash
        raise MismatchError(items, _word(choice), path=path) from None


def _word(choice: Any) -> str:
    """Return a type as messages name it: null, `list of int`, `one of a, b`."""
    if choice in (None, type(None)):
        return "null"
    if choice is Ellipsis:
        return "..."
    if choice is Any:
        return "Any"
    origin, arguments = get_origin(choice), get_args(choice)
    if origin is Literal:
        members = ", ".join(str(member) for member in arguments)
        return members if len(arguments) == 1 else f"one of {members}"
    if origin is not None:
        inner = ", ".join(describe(argument) for argument in arguments if argument is not Ellipsis)
        name = "function" if origin.__name__ == "Callable" else origin.__name__
        return f"{name} of {inner}" if inner and name != "function" else name
    return choice.__name__ if isinstance(choice, type) else str(choice)


@cache
def _fields(cls: type) -> tuple[tuple[str, Any, frozenset[type]], ...]:
    """Return each field with its annotation and the classes whose direct instances always match."""
    try:
        annotations = hints(cls)
    except NameError:  # annotations with names that are imported for type checkers only
        annotations = {}
    found = []
    for item in fields(cls):
        annotation = annotations.get(item.name, Any)
        plain = (bool, int, float, str, type(None))
        exact = {option for option in options(annotation) if option in plain}
        found.append((item.name, annotation, frozenset(exact)))
    return tuple(found)


def _has_fields(value: object, candidates: tuple[type, ...]) -> bool:
    """Return True if an object has every field of one of the classes, so that it can replace an instance."""
    names = ([item.name for item in fields(cls)] for cls in candidates)
    return any(each and all(hasattr(value, name) for name in each) for each in names)


def _shown(path: str, value: object) -> str:
    """Return the text of a value, truncated and with secrets masked."""
    try:
        text = repr(masked(leaf(path), value))
    except ValueError:  # an integer with more digits than Python converts
        return "an integer of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text) - _SHOWN:,} more characters)"
