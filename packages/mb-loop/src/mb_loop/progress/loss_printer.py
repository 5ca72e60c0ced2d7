"""Callback that prints losses, for small runs."""

from collections.abc import Callable, Mapping
from typing import SupportsFloat

from mb_loop.callbacks import Callback, CallbackContext


class LossPrinter(Callback):
    """Callback that prints a line for every n-th step and for each validation. Printing synchronises with the device.

    Args:
        every: steps between lines.
        write: prints one line.

    Raises:
        ValueError: `every` is not positive.
    """

    def __init__(self, every: int = 1, *, write: Callable[[str], None] = print) -> None:
        if every < 1:
            raise ValueError(
                f"LossPrinter.every: is {every}, but it is a number of steps. Set it to 1 or more."
            )
        self._every = every
        self._write = write

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Print the losses of the step, if this rank has them."""
        if context.result is not None and context.result.losses and context.result.step % self._every == 0:
            self._write(f"step {context.result.step}: {_values(context.result.losses)}")

    def on_eval_end(self, context: CallbackContext) -> None:
        """Print the losses of the validation."""
        if context.total_loss_dict:
            self._write(
                f"step {context.state.train_state.step}, validation: {_values(context.total_loss_dict)}"
            )


def _values(losses: Mapping[str, SupportsFloat]) -> str:
    return ", ".join(f"{name} {float(value):.4f}" for name, value in losses.items())
