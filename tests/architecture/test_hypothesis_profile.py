"""No hypothesis test has a deadline: tests/conftest.py and packages/conftest.py load a profile without one."""

from hypothesis import settings


def test_examples_have_no_deadline():
    assert settings().deadline is None
