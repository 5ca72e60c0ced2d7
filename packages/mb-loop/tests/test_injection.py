from functools import partial
from types import SimpleNamespace
from typing import Optional

import pytest

from mb_loop import maybe_inject_state, needs_global_state_injection, prepare_forward_step_func


class GlobalState(SimpleNamespace):
    pass


def plain(iterator, model):
    return "no state", iterator, model


def plain_with_plan(iterator, model, return_schedule_plan=False):
    return "no state", iterator, model, return_schedule_plan


def by_name(state, iterator, model):
    return state.step, iterator, model


def by_long_name(global_state, iterator, model, return_schedule_plan=False):
    return global_state.step, iterator, model, return_schedule_plan


def by_annotation(g: GlobalState, iterator, model):
    return g.step, iterator, model


def by_text(g: "trainer.GlobalState", iterator, model):  # noqa: F821
    return g.step, iterator, model


def by_optional(g: Optional[GlobalState], iterator, model):  # noqa: UP045
    return g.step, iterator, model


def by_union(g: GlobalState | None, iterator, model):
    return g.step, iterator, model


def in_the_middle(iterator, g: GlobalState, model):
    return g.step, iterator, model


def at_the_end(iterator, model, g: GlobalState):
    return g.step, iterator, model


def by_keyword(iterator, model, *, g: GlobalState):
    return g.step, iterator, model


class Functor:
    def __init__(self):
        self.calls = 0

    def __call__(self, state: GlobalState, iterator, model):
        self.calls += 1
        return state.step, iterator, model


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, False),
        (plain_with_plan, False),
        (partial(plain, "iterator"), False),
        (by_name, True),
        (by_long_name, True),
        (by_annotation, True),
        (by_text, True),
        (by_optional, True),
        (by_union, True),
        (at_the_end, True),
        (Functor(), True),
    ],
)
def test_signatures_that_take_the_state(function, expected):
    assert needs_global_state_injection(function) is expected


@pytest.mark.parametrize(
    "function",
    [
        by_name,
        by_annotation,
        by_text,
        by_optional,
        by_union,
        in_the_middle,
        at_the_end,
        by_keyword,
        Functor(),
    ],
)
def test_the_state_is_passed_to_its_parameter_and_later_changes_are_seen(function):
    state = GlobalState(step=1)
    step = prepare_forward_step_func(function, state)
    state.step = 2
    assert step("iterator", "model") == (2, "iterator", "model")


def test_functions_without_state_are_unchanged():
    assert prepare_forward_step_func(plain, GlobalState()) is plain
    assert maybe_inject_state(by_name, GlobalState(), needs_injection=False) is by_name


def test_a_function_without_annotation_may_take_the_state_first():
    assert maybe_inject_state(plain, "state", needs_injection=True)("model") == ("no state", "state", "model")


def test_a_prepared_function_is_not_bound_twice():
    step = prepare_forward_step_func(by_long_name, GlobalState(step=1))
    assert prepare_forward_step_func(step, GlobalState(step=9))("i", "m", True) == (1, "i", "m", True)


def test_a_functor_keeps_its_own_state():
    functor = Functor()
    prepare_forward_step_func(functor, GlobalState(step=1))("i", "m")
    assert functor.calls == 1
