"""Losses that are NaN or infinite end a run: at once, or one step later without waiting for the device."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from mb_loop import (  # noqa: E402 - imports torch
    CallbackContext,
    NonFiniteLossError,
    TrainState,
    require_finite_loss,
)
from mb_loop.step.loss_checks import DeferredLossCheck  # noqa: E402 - imports torch

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("value", [0.0, -3.5, 1e30])
def test_a_finite_loss_passes(value):
    require_finite_loss(torch.tensor(value))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_a_number_is_rejected(value):
    with pytest.raises(NonFiniteLossError, match=f"loss: is {value}"):
        require_finite_loss(torch.tensor(value))


def context(step: int, **values):
    """Return the context of an event after `step`."""
    return CallbackContext(state=SimpleNamespace(train_state=TrainState(step=step)), model=[], **values)


def train(check, losses: list[list[float]]) -> int:
    """Inspect the losses of each step's microbatches; return the steps that ended without an error."""
    for step, microbatches in enumerate(losses, start=1):
        for loss in microbatches:
            check.inspect(torch.tensor([loss, 4.0]))
        try:
            check.on_train_step_end(context(step))
        except NonFiniteLossError:
            return step - 1
    return len(losses)


@pytest.mark.parametrize("wrong", [NAN, INFINITY, -INFINITY])
def test_a_wrong_loss_ends_the_next_step(wrong):
    assert train(DeferredLossCheck(), [[2.0], [2.0, wrong, 2.0], [2.0], [2.0]]) == 2


def test_finite_losses_never_raise():
    check = DeferredLossCheck()
    assert train(check, [[2.0, -3.0], [1e30, 0.0]]) == 2
    for event in (check.on_checkpoint_start, check.on_eval_end, check.on_train_end):
        event(context(2, checkpoint_work="save", outcome=object()))


def test_the_error_names_the_step_and_what_to_do():
    check = DeferredLossCheck()
    train(check, [[2.0], [NAN]])
    with pytest.raises(
        NonFiniteLossError, match=r"NaN or infinite at step 3 or the one before.*lower learning rate"
    ):
        check.on_train_step_end(context(3))


def test_no_checkpoint_is_written_after_a_wrong_loss():
    check = DeferredLossCheck()
    train(check, [[2.0], [NAN]])
    check.on_checkpoint_start(context(2, checkpoint_work="finalize"))  # of a step before
    with pytest.raises(NonFiniteLossError):
        check.on_checkpoint_start(context(2, checkpoint_work="save"))


def test_an_evaluation_and_the_end_of_training_read_the_flag():
    check = DeferredLossCheck()
    train(check, [[2.0], [NAN]])
    with pytest.raises(NonFiniteLossError):
        check.on_eval_end(context(2))
    with pytest.raises(NonFiniteLossError):
        check.on_train_end(context(2, outcome=object()))


def test_another_error_at_the_end_of_training_is_not_replaced():
    check = DeferredLossCheck()
    train(check, [[2.0], [NAN]])
    check.on_train_end(context(2, outcome=None))


def test_a_check_without_losses_reads_nothing():
    check = DeferredLossCheck()
    check.on_train_step_end(context(1))
    check.on_checkpoint_start(context(1, checkpoint_work="save"))


def test_a_step_reads_no_tensor_on_the_host_but_the_copy_of_the_one_before():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reads(TorchDispatchMode):
        """Count the tensors whose value Python reads."""

        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    check = DeferredLossCheck()
    with Reads() as reads:
        for _ in range(16):
            check.inspect(torch.tensor(2.0))
    assert reads.count == 0


def test_the_flag_is_changed_in_place_so_that_a_replayed_graph_changes_it():
    check = DeferredLossCheck()
    check.inspect(torch.tensor(2.0))  # the warm-up of a graph
    flag = check._flag
    check.inspect(torch.tensor(NAN))
    assert check._flag is flag
    flag.fill_(True)  # what a replay does, without a call of `inspect`
    check.on_train_step_end(context(1))
    with pytest.raises(NonFiniteLossError):
        check.on_train_step_end(context(2))
