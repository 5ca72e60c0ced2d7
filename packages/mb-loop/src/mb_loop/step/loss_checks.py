"""Checks for losses that are NaN or infinite: at once, or without waiting for the device. Imports torch.

`DeferredLossCheck` folds the loss of each microbatch into one flag on the device. At the end of a step the flag is
copied to the host without waiting, and the copy of the previous step is read, which has arrived by then. A wrong loss
therefore ends the run at most one step late, and always before a checkpoint of that step is written.
"""

from typing import Any

import torch
from torch import Tensor

from mb_loop.errors import NonFiniteLossError


def require_finite_loss(loss: Tensor) -> None:
    """Raise if a loss contains NaN or infinity. Local to the rank; synchronises with the device.

    Raises:
        NonFiniteLossError: a value is NaN or infinite.
    """
    if not bool(loss.isfinite().all()):
        raise NonFiniteLossError(
            f"loss: is {loss.tolist()}, because the last update made weights too large, or the data has such values. "
            "Resume from the newest checkpoint with a lower learning rate or more warm-up, or check the data."
        )


class DeferredLossCheck:
    """Callback, and inspection of the loss of each microbatch, that ends a run whose loss is NaN or infinite.

    Each rank checks its own losses. No call waits for the device or is collective, except that the flag is read at
    once before a checkpoint, after an evaluation and at the end of training, where the loop waits for the device as it
    is.
    Pass `inspect` to the forward step, and the object to `train` as a callback.

    Example:
        >>> import torch
        >>> check = DeferredLossCheck()
        >>> check.inspect(torch.tensor(2.5))
        >>> check.on_train_end(None)
    """

    def __init__(self) -> None:
        self._flag: Tensor | None = None
        self._copy: Tensor | None = None
        self._copied: Any = None

    def inspect(self, loss: Tensor) -> None:
        """Fold a loss of any shape into the flag on the device."""
        wrong = loss.detach().isfinite().all().logical_not()
        if self._flag is None:
            self._flag = wrong
        else:
            self._flag.logical_or_(wrong)

    def on_train_step_end(self, context: Any) -> None:
        """Read the flag of the step before, and start the copy of the current one.

        Raises:
            NonFiniteLossError: a loss up to the step before is NaN or infinite.
        """
        # Does not wait: a step has passed since this copy was issued.
        if self._copied is not None:
            self._copied.synchronize()
        if self._copy is not None and bool(self._copy):
            raise _error(context)
        if self._flag is None:
            return
        if self._flag.device.type != "cuda":
            self._copy = self._flag.clone()
            return
        if self._copy is None:
            self._copy = torch.zeros_like(self._flag, device="cpu", pin_memory=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copy.copy_(self._flag, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def on_checkpoint_start(self, context: Any) -> None:
        """Read the flag before a save, so that no checkpoint holds weights from a wrong loss.

        Raises:
            NonFiniteLossError: a loss so far is NaN or infinite.
        """
        if getattr(context, "checkpoint_work", "save") == "save":
            self._read(context)

    def on_eval_end(self, context: Any) -> None:
        """Read the flag after an evaluation, whose losses are on the host already; raises as at a checkpoint."""
        self._read(context)

    def on_train_end(self, context: Any) -> None:
        """Read the flag of the last step, unless another error ends the training; raises as at a checkpoint."""
        if getattr(context, "outcome", True) is not None:
            self._read(context)

    def _read(self, context: Any) -> None:
        if self._flag is not None and bool(self._flag):
            raise _error(context)


def _error(context: Any) -> NonFiniteLossError:
    state = getattr(context, "state", None)
    step = "" if state is None else f" at step {state.train_state.step} or the one before"
    return NonFiniteLossError(
        f"loss: a microbatch of this rank has a loss that is NaN or infinite{step}, because the last update made "
        "weights too large, or the data has such values. Resume from the newest checkpoint with a lower learning rate "
        "or more warm-up, or check the data. rerun_state_machine.check_loss_immediately=true raises in the microbatch "
        "itself."
    )
