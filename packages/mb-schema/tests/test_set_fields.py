"""Sections know which of their fields were set."""

import copy
import pickle
from dataclasses import dataclass, field, replace

import pytest

from mb_schema.sections import StrictFields


@dataclass
class Data(StrictFields):
    length: int
    paths: list = field(default_factory=list)
    cache: str | None = None
    total: int = field(default=0, init=False)

    def __post_init__(self):
        self.total = self.length


@dataclass(kw_only=True)
class Split(Data):
    parts: int = 1

    def __post_init__(self):
        super().__post_init__()
        self.cache = self.cache or "cache"


def given(section):
    return set(section._given)


def test_arguments_and_assignments_are_recorded_also_if_equal_to_the_default():
    data = Data(8, cache=None)
    assert given(data) == {"length", "cache"}
    data.paths = []
    assert given(data) == {"length", "cache", "paths"}


def test_what_post_init_computes_is_not_recorded():
    assert given(Split(length=8)) == {"length"}
    assert Split(length=8).cache == "cache"


def test_every_copy_has_a_record_of_its_own():
    data = Data(8)
    for other in (copy.copy(data), copy.deepcopy(data), pickle.loads(pickle.dumps(data)), replace(data)):
        other.cache = "x"
        assert given(other) == {"length", "cache"}
        assert given(data) == {"length"}


def test_replace_records_the_changes_and_keeps_the_record_of_the_others():
    """In whatever order they are named, and if they are equal to what they replace."""
    data = Split(length=8, parts=2)
    assert given(replace(data, paths=[])) == {"length", "parts", "paths"}
    assert given(replace(data, paths=[], length=8, cache=None)) == {"length", "parts", "paths", "cache"}
    assert replace(data, paths=[1]) == Split(length=8, parts=2, paths=[1])


def test_names_of_arguments_that_are_not_fields_are_rejected_as_before():
    with pytest.raises(TypeError, match="no such field"):
        Data(8, chache="x")
    assert "_given" not in repr(Data(8))
