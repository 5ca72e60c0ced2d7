"""Replacement of lines in a function."""

import functools

import pytest

from mb_guard.faults.rewriting import rewritten

FACTOR = 2


def scaled(number, *, more=1):
    """Return a scaled number."""
    return FACTOR * number + more


def test_lines_are_replaced_one_after_the_other():
    once = rewritten(
        scaled, ("FACTOR * number", "FACTOR * mb_guard_square(number)"), mb_guard_square=lambda n: n * n
    )
    twice = rewritten(once, ("+ more", "- more"))
    assert (scaled(3), once(3), twice(3, more=2)) == (7, 19, 16)
    assert (twice.__name__, twice.__doc__) == ("scaled", "Return a scaled number.")


def test_a_text_that_is_not_there_once_is_an_error():
    with pytest.raises(ValueError, match="scaled: 'more' occurs 2 times, not once"):
        rewritten(scaled, ("more", "less"))


def test_a_wrapped_function_is_not_rewritten():
    wrapped = functools.wraps(scaled)(lambda number: scaled(number))
    with pytest.raises(ValueError, match="scaled: is wrapped; patches that rewrite"):
        rewritten(wrapped, ("FACTOR", "2"))
