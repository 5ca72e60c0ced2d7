"""Forward steps of users: the state is injected, results are checked, losses are inspected."""

from functools import partial
from types import SimpleNamespace
from typing import Optional

import pytest

torch = pytest.importorskip("torch")

from mb_loop import (  # noqa: E402
    maybe_inject_state,
    needs_global_state_injection,
    prepare_forward_step_func,
)
from mb_loop.errors import ForwardStepError  # noqa: E402
from mb_loop.step.forward_step import inspected_forward_step  # noqa: E402


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


def loss_function(output, non_loss_data=False):
    """Return loss and logged losses, or non-loss data."""
    return output if non_loss_data else (output.sum(), {"loss": output.sum()})


def with_loss(iterator, model):
    """Run a model on the next batch."""
    return model(next(iterator)), loss_function


def test_the_loss_of_each_microbatch_is_inspected_and_returned():
    seen = []
    step = inspected_forward_step(with_loss, None, inspect_loss=seen.append)
    weight = torch.ones(2, requires_grad=True)
    output, loss = step(iter([torch.tensor([1.0, 2.0])]), lambda batch: weight * batch)
    value, logged = loss(output)
    assert (float(value.detach()), float(logged["loss"].detach()), [float(each) for each in seen]) == (
        3.0,
        3.0,
        [3.0],
    )
    assert value.requires_grad
    assert not seen[0].requires_grad
    assert loss(output, non_loss_data=True) is output
    assert len(seen) == 1


def test_a_stage_without_a_loss_has_nothing_to_inspect():
    step = inspected_forward_step(lambda iterator, model: (model, None), None, inspect_loss=list.append)
    assert step(None, "hidden") == ("hidden", None)


def test_a_logged_loss_is_not_divided_with_the_loss():
    def aliased(iterator, model):
        def loss(output):
            value = output.sum()
            return value, torch.tensor(3), {"loss": value.detach(), "other": value + 1}

        return model, loss

    _, loss_function = inspected_forward_step(aliased, None)(None, torch.tensor([2.0, 4.0]))
    with torch.no_grad():
        loss, tokens, logged = loss_function(torch.tensor([2.0, 4.0]))
    loss /= 2  # as Megatron's schedules do
    assert (float(loss), int(tokens), float(logged["loss"]), float(logged["other"])) == (3.0, 3, 6.0, 7.0)


def test_a_state_is_bound():
    def with_state(state, iterator, model):
        return (state, iterator, model), None

    step = inspected_forward_step(with_state, "state")
    assert step("data", "model") == (("state", "data", "model"), None)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda output: output.sum().detach(), "loss function: returned Tensor"),
        (lambda output: (output.sum().detach(), {}), "a loss without a gradient"),
        (lambda output: (output.sum(), 3), r"a report \(int\)"),
        (lambda output: (output.sum(), 1, {}, 3), "loss function: returned tuple"),
    ],
)
def test_results_that_a_schedule_would_misread_are_rejected(returned, message):
    _, loss = inspected_forward_step(lambda iterator, model: (model, returned), None)(None, None)
    with pytest.raises(ForwardStepError, match=message):
        loss(torch.ones(2, requires_grad=True))


def test_a_forward_step_without_a_loss_function_is_rejected():
    with pytest.raises(ForwardStepError, match="forward step: returned Tensor"):
        inspected_forward_step(lambda iterator, model: torch.ones(3), None)(None, None)


def test_a_number_among_the_logged_losses_is_left_to_the_average():
    step = inspected_forward_step(
        lambda iterator, model: (model, lambda output: (output, {"loss": 3.0})), None
    )
    output = torch.ones((), requires_grad=True)
    assert step(None, output)[1](output)[1] == {"loss": 3.0}


def test_a_loss_without_tokens_is_rejected_where_megatron_divides_by_them():
    model = SimpleNamespace(config=SimpleNamespace(calculate_per_token_loss=True))
    output = torch.ones((), requires_grad=True)

    def loss_of(*returned):
        return inspected_forward_step(lambda *_: (output, lambda _: returned), None)(None, model)[1](output)

    assert loss_of(output, torch.tensor(1), {}) == (output, torch.tensor(1), {})
    with torch.no_grad():  # an evaluation divides no gradients
        assert loss_of(output, {}) == (output, {})
    with pytest.raises(ForwardStepError, match="calculate_per_token_loss=false"):
        loss_of(output, {})
