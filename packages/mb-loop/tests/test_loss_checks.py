"""Rejection of losses that are NaN or infinite."""

import pytest

from mb_loop import NonFiniteLossError, require_finite_loss

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("value", [0.0, -3.5, 1e30])
def test_a_finite_loss_passes(value):
    require_finite_loss(torch.tensor(value))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_a_number_is_rejected(value):
    with pytest.raises(NonFiniteLossError, match=f"loss: is {value}"):
        require_finite_loss(torch.tensor(value))
