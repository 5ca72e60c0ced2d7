"""Limit of open files of a process."""

import resource

import pytest

from mb_data.errors import OpenFilesError
from mb_data.loading.mapped_files import RESERVE, allow_open_files


@pytest.fixture
def limits(monkeypatch):
    """Return the limits of a process, soft and hard, which a test can change."""
    found = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(found))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: found.__setitem__(slice(None), both))
    return found


def test_few_files_leave_the_limit_as_it_is(limits):
    allow_open_files(500, purpose="dataset.data_path")
    assert limits == [1024, 4096]


def test_many_files_raise_the_soft_limit(limits):
    allow_open_files(2000, purpose="dataset.data_path")
    assert limits == [2000 + RESERVE, 4096]


def test_more_files_than_the_hard_limit_are_one_error(limits):
    with pytest.raises(OpenFilesError, match=r"dataset.data_path: 9,000 files stay open, .* may open 4,096"):
        allow_open_files(9000, purpose="dataset.data_path")


def test_without_a_limit_nothing_is_changed(limits):
    limits[:] = [resource.RLIM_INFINITY] * 2
    allow_open_files(10**6, purpose="dataset.data_path")
    assert limits == [resource.RLIM_INFINITY] * 2
