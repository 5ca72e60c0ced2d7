import pytest

torch = pytest.importorskip("torch")

from mb_loop import LossShapeError, reduce_losses  # noqa: E402


def test_token_losses_are_weighted_by_their_tokens():
    microbatches = [{"lm loss": torch.tensor([20.0, 10.0])}, {"lm loss": torch.tensor([120.0, 30.0])}]
    assert reduce_losses(microbatches, groups=None) == {"lm loss": torch.tensor(3.5)}


def test_scalar_losses_are_averaged():
    first = {"a": torch.tensor(1.0), "b": torch.tensor([5.0])}
    second = {"a": torch.tensor(2.0), "b": torch.tensor([7.0])}
    assert reduce_losses([first, second], groups=None) == {"a": torch.tensor(1.5), "b": torch.tensor(6.0)}


def test_losses_carry_no_graph():
    loss = torch.ones(1, requires_grad=True).sum()
    assert not reduce_losses([{"loss": loss}], groups=None)["loss"].requires_grad


@pytest.mark.parametrize("microbatches", [[], [{}], [{}, {}]])
def test_a_stage_without_losses_reports_none_and_needs_no_group(microbatches):
    assert reduce_losses(microbatches, groups=object()) == {}


def test_other_shapes_are_rejected():
    with pytest.raises(LossShapeError, match=r"'loss': has 3 elements"):
        reduce_losses([{"loss": torch.ones(3)}], groups=None)
    with pytest.raises(LossShapeError, match=r"'loss': has 1 or 2 elements, .* for every microbatch"):
        reduce_losses([{"loss": torch.ones(1)}, {"loss": torch.ones(2)}], groups=None)


def test_a_loss_that_was_read_by_the_host_is_rejected():
    with pytest.raises(LossShapeError, match=r"'loss': is of type float"):
        reduce_losses([{"loss": 1.0}], groups=None)


def test_microbatches_with_different_names_are_rejected():
    one = torch.ones(())
    with pytest.raises(
        LossShapeError, match=r"microbatch 1 reports \['loss', 'aux'\], the first one \['loss'\]"
    ):
        reduce_losses([{"loss": one}, {"loss": one, "aux": one}], groups=None)
