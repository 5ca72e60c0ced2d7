"""Inspection of the losses of a user's forward step."""

import pytest

torch = pytest.importorskip("torch")

from mb_loop.errors import ForwardStepError  # noqa: E402
from mb_loop.step.inspected_step import inspected_forward_step  # noqa: E402


def loss_function(output, non_loss_data=False):
    """Return loss and logged losses, or non-loss data."""
    return output if non_loss_data else (output.sum(), {"loss": output.sum()})


def forward_step(iterator, model):
    """Run a model on the next batch."""
    return model(next(iterator)), loss_function


def test_the_loss_of_each_microbatch_is_inspected_and_returned():
    seen = []
    step = inspected_forward_step(forward_step, None, inspect_loss=seen.append)
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
