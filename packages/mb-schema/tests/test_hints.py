"""Annotations that are text are resolved on every Python, also next to an InitVar."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from mb_schema.value_types import FieldTypeError, hints, reject_wrong_types


@dataclass(kw_only=True)
class Base:
    path: Path | None = None


@dataclass(kw_only=True)
class Section(Base):
    limit: ClassVar[int] = 3
    start: InitVar[int] = 7
    sizes: list[int] | None = None

    def __post_init__(self, start: int) -> None:
        self.start_plus_one = start + 1


def test_the_fields_have_their_types():
    found = hints(Section)
    assert (found["sizes"], found["path"]) == (list[int] | None, Path | None)


def test_values_next_to_an_init_var_are_checked():
    reject_wrong_types(Section(sizes=[1]), path="section")
    with pytest.raises(FieldTypeError, match=r"section\.sizes\[0\]: expected int, not 'a'"):
        reject_wrong_types(Section(sizes=["a"]), path="section")
