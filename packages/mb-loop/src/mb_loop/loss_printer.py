"""A callback that prints losses: enough to watch a small run."""

from collections.abc import Callable, Mapping
from typing import SupportsFloat

from mb_loop.callbacks import Callback, CallbackContext


class LossPrinter(Callback):
    """Print a line for every n-th step, and one for each validation. Reading a loss waits for the device.

    Args:
        every: steps between lines.
        write: takes one line.

    Raises:
        ValueError: `every` is not positive.
    """

    def __init__(self, every: int = 1, *, write: Callable[[str], None] = print) -> None:
        if every < 1:
            raise ValueError(
                f"LossPrinter.every: must be 1 or more, is {every}; it counts steps. Set it higher."
            )
        self._every = every
        self._write = write

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Print the losses of the step, where there are any."""
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
