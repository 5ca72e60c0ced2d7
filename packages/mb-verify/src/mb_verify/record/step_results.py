"""Reader that records only what each step computed, for runs whose state is too large to hash. Imports torch later."""

from importlib import import_module
from typing import Any


class StepResultReader:
    """Reader of losses, gradient norm and learning rate of each step (`StateReader`). Reads no parameters.

    Of the events' argument it reads `result` (losses, grad_norm, learning_rate, skipped).

    Args:
        context: argument of `on_train_start`.
    """

    reads_data = True

    def __init__(self, context: Any) -> None:
        self._exact = import_module("mb_verify.record.torch_state").exact_number

    def microbatch(self, context: Any) -> None:
        """Do nothing: sequences are no results."""

    def state(self, context: Any, *, complete: bool = False) -> dict[str, str]:
        """Return no values: the state is not recorded."""
        return {}

    def step(self, context: Any) -> dict[str, str]:
        """Return what a step computed. Synchronises with the device."""
        result = context.result
        if result is None:
            return {}
        values = {f"losses: {name}": self._exact(loss) for name, loss in result.losses.items()}
        values["gradient norm: of all parameters"] = self._exact(result.grad_norm)
        values["learning rate: of the step"] = self._exact(result.learning_rate)
        values["counters: update skipped"] = str(bool(result.skipped))
        return values
