"""Conversion of values to the types of fields."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Optional, TypeVar, Union

import pytest

from mb_config import WrongTypeError
from mb_config.cli.message_text import truncate_repr
from mb_config.container.field_types import fit
from mb_schema.value_types import describe

FITS = [
    (3, int, 3),
    (3, float, 3.0),
    (3, float | int, 3),
    (3, Optional[float], 3.0),  # noqa: UP045
    (None, Optional[int], None),  # noqa: UP045
    (True, bool, True),
    (True, int | bool, True),
    ("a", str, "a"),
    ("a", Path, Path("a")),
    ("a", Union[int, str], "a"),  # noqa: UP007
    ("b", Literal["a", "b"], "b"),
    ("SIGINT", signal.Signals, signal.SIGINT),
    (2, signal.Signals, signal.SIGINT),
    ([1, 2], list[float], [1.0, 2.0]),
    ([1, 2], tuple[float, ...], (1.0, 2.0)),
    ([1, "a"], tuple[int, str], (1, "a")),
    ([1], tuple, (1,)),
    ([1], list, [1]),
    ([1, 1], set[int], {1}),
    ({"a": 1}, dict[str, float], {"a": 1.0}),
    ({"a": 1}, dict, {"a": 1}),
    (len, Callable[..., int], len),
    (int, type[int], int),
    (object, Any, object),
    (2**63 - 1, int, 2**63 - 1),
    (10**20, float, 1e20),
    (3, TypeVar("T"), 3),
]
DOES_NOT = [
    (True, int, "int"),
    (True, float, "float"),
    (1, bool, "bool"),
    ("abc", int, "int"),
    ("3", int, "int"),
    (1.5, int, "int"),
    (1, str, "str"),
    (None, int, "int"),
    ("c", Literal["a", "b"], "one of a, b"),
    (True, Literal[0, 1], "one of 0, 1"),
    (1.5, int | None, "int or null"),
    ("SIGNOT", signal.Signals, "Signals"),
    ("ab", list[str], "list of str"),
    ([1], tuple[int, str], "tuple of int, str"),
    ([1], dict[str, int], "dict of str, int"),
    (3, Callable[..., int], "function"),
    (3, Path, "Path"),
    (2**63, int, "an integer of at most 64 bits"),
    (-(10**40), int | None, "an integer of at most 64 bits"),
    (10**400, float, "a number that fits a float"),
]


@pytest.mark.parametrize(("value", "annotation", "expected"), FITS)
def test_fits(value, annotation, expected):
    result = fit(value, annotation, path="a.b")
    assert (result, type(result)) == (expected, type(expected))


@pytest.mark.parametrize(("value", "annotation", "words"), DOES_NOT)
def test_does_not_fit(value, annotation, words):
    with pytest.raises(WrongTypeError) as caught:
        fit(value, annotation, path="a.b")
    assert str(caught.value) == f"a.b: expected {words}, not {truncate_repr(value)}"


@pytest.mark.parametrize(
    ("value", "annotation", "path"),
    [
        ([1, "x"], list[int], "a[1]"),
        ({"k": "x"}, dict[str, int], "a.k"),
        ([["x"]], list[list[int]] | None, "a[0][0]"),
    ],
)
def test_the_error_names_the_item(value, annotation, path):
    with pytest.raises(WrongTypeError) as caught:
        fit(value, annotation, path="a")
    assert caught.value.path == path


def test_types_in_words():
    assert describe(tuple[str, ...] | None) == "tuple of str or null"
