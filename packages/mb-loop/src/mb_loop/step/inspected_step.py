"""Forward steps of users whose losses are inspected, as those of the package's own models are. Imports torch."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mb_loop.step.forward_results import checked_loss, checked_output
from mb_loop.step.injection import ForwardStep, maybe_inject_state


def inspected_forward_step(
    forward_step_func: ForwardStep,
    state: object,
    *,
    inspect_loss: Callable[[Any], object] | None = None,
) -> ForwardStep:
    """Return a forward step that takes no state, and that passes each microbatch's loss to `inspect_loss`.

    Logged losses that share the memory of the loss are copied: Megatron's schedules divide the loss in place by the
    number of microbatches, and `loss.detach()` would be divided with it.

    Args:
        forward_step_func: `(iterator, model)` or `(state, iterator, model)`; returns the output of the model and the
            loss function for it, or None on stages without a loss.
        state: global state for a forward step with a parameter for it.
        inspect_loss: called with the first value of the loss function's result, detached; None: losses are not
            inspected. The result for non-loss data is not.

    The forward step raises a ForwardStepError if the user's step or loss function returns something else than
    Megatron's schedules need, or a loss without a gradient, which they would accept in silence.
    """
    step = maybe_inject_state(forward_step_func, state)

    def inspected(*arguments: Any, **options: Any) -> Any:
        output, loss_function = checked_output(step(*arguments, **options), has_loss=False)
        if loss_function is None:
            return output, None

        def loss_of(output: Any, **selection: Any) -> Any:
            result = loss_function(output, **selection)
            if selection.get("non_loss_data"):
                return result
            loss, *tokens, logged = checked_loss(result)
            if inspect_loss is not None:
                inspect_loss(loss.detach())
            return loss, *tokens, {name: _own_memory(value, loss) for name, value in logged.items()}

        return output, loss_of

    return inspected


def _own_memory(value: Any, loss: Tensor) -> Any:
    """Return a logged value, copied if it shares the memory of the loss."""
    shared = isinstance(value, Tensor) and value.data_ptr() == loss.data_ptr()
    return value.clone() if shared else value
