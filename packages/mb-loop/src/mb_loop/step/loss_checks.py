"""Check for losses that are NaN or infinite, for forward steps that raise immediately."""

from typing import TYPE_CHECKING

from mb_loop.errors import LoopError

if TYPE_CHECKING:
    from torch import Tensor


class NonFiniteLossError(LoopError, RuntimeError):
    """A loss is NaN or infinite."""


def require_finite_loss(loss: "Tensor") -> None:
    """Raise if a loss contains NaN or infinity. Local to the rank; synchronises with the device.

    Raises:
        NonFiniteLossError: a value is NaN or infinite.
    """
    if not bool(loss.isfinite().all()):
        raise NonFiniteLossError(
            f"loss: is {loss.tolist()}, because the last update made weights too large, or the data has such values. "
            "Resume from the newest checkpoint with a lower learning rate or more warm-up, or check the data."
        )
