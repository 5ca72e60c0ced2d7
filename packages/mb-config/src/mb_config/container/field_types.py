"""Conversion of values from files and command lines to the types of fields."""

from __future__ import annotations

from typing import Any

from mb_config.errors import WrongTypeError
from mb_schema import value_types
from mb_schema.value_types import MismatchError, Nested


def fit(value: Any, annotation: Any, *, path: str, nested: Nested | None = None) -> Any:
    """Return the value converted to the type of the field, as `mb_schema.value_types.fit` does.

    Raises:
        WrongTypeError: If the value does not match; contains `path`, the value and the type.
    """
    try:
        return value_types.fit(value, annotation, path=path, nested=nested)
    except MismatchError as error:
        raise WrongTypeError(error.value, error.expected, path=error.path) from None


def fit_key(key: Any, annotation: Any, *, path: str) -> Any:
    """Return the key of a mapping converted to its type, as `mb_schema.value_types.fit_key` does.

    Raises:
        WrongTypeError: If the key does not match.
    """
    try:
        return value_types.fit_key(key, annotation, path=path)
    except MismatchError as error:
        raise WrongTypeError(error.value, error.expected, path=error.path) from None
