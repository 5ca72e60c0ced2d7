"""Is a loss a number? A check for forward steps that want to fail at once rather than train on."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class NonFiniteLossError(RuntimeError):
    """A loss is NaN or infinite."""


def require_finite_loss(loss: "Tensor") -> None:
    """Refuse a loss with NaN or infinity in it. Local to the rank; synchronises with the device.

    Raises:
        NonFiniteLossError: there is one.
    """
    if not bool(loss.isfinite().all()):
        raise NonFiniteLossError(
            f"loss: is {loss.tolist()}, because the last update made weights too large, or the data has such values. "
            "Resume from the newest checkpoint with a lower learning rate or more warm-up, or look at the data."
        )
