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

    Args:
        forward_step_func: `(iterator, model)` or `(state, iterator, model)`; returns the output of the model and the
            loss function for it, or None on stages without a loss.
        state: global state for a forward step with a parameter for it.
        inspect_loss: called with the first value of the loss function's result, detached; None: losses are not
            inspected. The result for non-loss data is not.
    """
    step = maybe_inject_state(forward_step_func, state)
    if inspect_loss is None:
        return step

    def inspected(*arguments: Any, **options: Any) -> Any:
        output, loss_function = step(*arguments, **options)
        if loss_function is None:
            return output, None

        def loss_of(output: Any, **selection: Any) -> Any:
            result = loss_function(output, **selection)
            if not selection.get("non_loss_data"):
                inspect_loss((result[0] if isinstance(result, tuple) else result).detach())
            return result

        return output, loss_of

    return inspected
