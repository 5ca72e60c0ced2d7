"""Forward steps of users whose losses are inspected, as those of the package's own models are."""

from collections.abc import Callable
from typing import Any

from mb_loop.injection import ForwardStep, maybe_inject_state


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
    """
    step = maybe_inject_state(forward_step_func, state)

    def inspected(*arguments: Any, **options: Any) -> Any:
        output, loss_function = step(*arguments, **options)
        if loss_function is None:
            return output, None

        def loss_of(output: Any, **selection: Any) -> Any:
            result = loss_function(output, **selection)
            if selection.get("non_loss_data"):
                return result
            if inspect_loss is not None:
                inspect_loss(result[0].detach())
            *first, logged = result
            address = result[0].data_ptr()
            return (
                *first,
                {
                    name: value.clone() if value.data_ptr() == address else value
                    for name, value in logged.items()
                },
            )

        return output, loss_of

    return inspected
