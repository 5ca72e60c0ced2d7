"""Whether a value from a file or a command line fits a field's type, and what it becomes."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from mb_config.errors import WrongTypeError

Nested: TypeAlias = Callable[[Mapping[str, Any], tuple[type, ...], str], object]
"""Builds an object of one of these dataclasses from a mapping at a path."""

_INTEGERS = range(-(2**63), 2**63)
"""What NumPy, torch and file formats take."""


def hints(cls: Any) -> dict[str, Any]:
    """Resolved annotations of the fields of `cls`, inherited ones too."""
    return get_type_hints(cls)


def options(annotation: Any) -> tuple[Any, ...]:
    """Members of a union; any other type is its only member."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def dataclasses_of(annotation: Any) -> tuple[type, ...]:
    """Dataclasses among the options of an annotation."""
    return tuple(o for o in options(annotation) if isinstance(o, type) and is_dataclass(o))


def is_open(annotation: Any) -> bool:
    """True for a type that says nothing: Any or object."""
    return any(option in (Any, object) for option in options(annotation))


def describe(annotation: Any) -> str:
    """The type in words for an error message."""
    return " or ".join(_word(option) for option in options(annotation))


def fit(value: Any, annotation: Any, *, path: str, nested: Nested | None = None) -> Any:
    """The value as the field wants it.

    An int fits float and becomes one, text fits Path and becomes one, a list fits a tuple, a name fits an enum;
    True is no int and "3" is no number. A mapping where a dataclass is wanted goes through `nested`.

    Raises:
        WrongTypeError: names `path`, the value and the type.
    """
    choices = options(annotation)
    if type(value) is int and int in choices and value not in _INTEGERS:
        raise WrongTypeError(value, "an integer of at most 64 bits", path=path)
    if is_open(annotation) or any(type(value) is choice for choice in choices):
        return value
    candidates = dataclasses_of(annotation)
    if candidates and isinstance(value, Mapping) and nested is not None:
        return nested(value, candidates, path)
    for choice in choices:
        try:
            return _fit_one(value, choice, path=path, nested=nested)
        except WrongTypeError as error:
            if len(choices) == 1 or error.path != path:
                raise
    raise WrongTypeError(value, describe(annotation), path=path)


def _fit_one(value: Any, choice: Any, *, path: str, nested: Nested | None) -> Any:
    origin = get_origin(choice)
    if choice in (None, type(None)):
        fits = value is None
    elif origin is Literal:
        fits = any(type(value) is type(member) and value == member for member in get_args(choice))
    elif origin is not None:
        return _fit_generic(value, choice, origin, path=path, nested=nested)
    elif not isinstance(choice, type):
        fits = True  # a type variable or another construct that cannot be tested
    else:
        return _fit_class(value, choice, path=path)
    if not fits:
        raise WrongTypeError(value, _word(choice), path=path)
    return value


def _fit_class(value: Any, choice: type, *, path: str) -> Any:
    if choice is float and isinstance(value, int) and not isinstance(value, bool):
        return _as_float(value, path=path)
    if issubclass(choice, Path) and isinstance(value, str):
        return choice(value)
    if issubclass(choice, Enum) and not isinstance(value, choice):
        return _member(value, choice, path=path)
    if choice is tuple and isinstance(value, list):
        return tuple(value)
    if isinstance(value, choice) and (choice is bool or not isinstance(value, bool)):
        return value
    raise WrongTypeError(value, _word(choice), path=path)


def _as_float(value: int, *, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise WrongTypeError(value, "a number that fits a float", path=path) from None


def _member(value: Any, choice: type[Enum], *, path: str) -> Enum:
    for member in choice:
        if value == member.name or (type(value) is type(member.value) and value == member.value):
            return member
    raise WrongTypeError(value, _word(choice), path=path)


def _fit_generic(value: Any, choice: Any, origin: Any, *, path: str, nested: Nested | None) -> Any:
    arguments = get_args(choice)
    if origin is type or (isinstance(origin, type) and issubclass(origin, Callable)):  # type: ignore[arg-type]
        if not callable(value):
            raise WrongTypeError(value, _word(choice), path=path)
        return value
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return _fit_mapping(value, arguments, path=path, nested=nested)
    plain = isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes)
    if not isinstance(origin, type) or issubclass(origin, Mapping) or not plain:
        raise WrongTypeError(value, _word(choice), path=path)
    return _fit_items(value, choice, origin, path=path, nested=nested)


def _fit_mapping(
    value: Mapping[Any, Any], arguments: tuple[Any, ...], *, path: str, nested: Nested | None
) -> dict[Any, Any]:
    key_type, value_type = arguments or (Any, Any)
    return {
        fit(key, key_type, path=f"{path}.{key}"): fit(item, value_type, path=f"{path}.{key}", nested=nested)
        for key, item in value.items()
    }


def _fit_items(value: Any, choice: Any, origin: type, *, path: str, nested: Nested | None) -> Any:
    arguments = get_args(choice)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(arguments) != len(value):
            raise WrongTypeError(value, _word(choice), path=path)
    else:
        arguments = arguments[:1] * len(value)
    items = [
        fit(item, kind, path=f"{path}[{index}]", nested=nested)
        for index, (item, kind) in enumerate(zip(value, arguments, strict=True))
    ]
    return origin(items) if origin in (tuple, set, frozenset) else items


def _word(choice: Any) -> str:
    if choice in (None, type(None)):
        return "null"
    if choice is Ellipsis:
        return "..."
    origin, arguments = get_origin(choice), get_args(choice)
    if origin is Literal:
        return "one of " + ", ".join(str(member) for member in arguments)
    if origin is not None:
        inner = ", ".join(describe(argument) for argument in arguments if argument is not Ellipsis)
        name = "function" if origin.__name__ == "Callable" else origin.__name__
        return f"{name} of {inner}" if inner and name != "function" else name
    return choice.__name__ if isinstance(choice, type) else str(choice)
