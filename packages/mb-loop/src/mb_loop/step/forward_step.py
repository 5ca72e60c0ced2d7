"""Forward steps of users: injection of the global state, checks of what they return, inspection of their losses.

A forward step takes `(iterator, model)` or `(state, iterator, model)`, each with or without an additional
`return_schedule_plan`. The signature is inspected once per run. An annotated state may be at any position. Imports
torch.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from mb_loop.errors import ForwardStepError

ForwardStep = Callable[..., Any]


def needs_global_state_injection(forward_step_func: ForwardStep) -> bool:
    """Return whether the function has a parameter for the state.

    True if a parameter is annotated with a class named GlobalState, with an optional one, or with a string that
    contains the name, or if the first parameter is named `state` or `global_state`. For a callable object, `__call__`
    is inspected.
    """
    return _state_position(forward_step_func) is not None


def _state_position(forward_step_func: ForwardStep) -> int | None:
    """Return the position of the parameter that takes the state, counted from 0, or None."""
    parameters = list(inspect.signature(forward_step_func).parameters.values())
    for position, parameter in enumerate(parameters):
        if _is_global_state(parameter.annotation):
            return position
    return 0 if parameters and parameters[0].name in ("state", "global_state") else None


def _is_global_state(annotation: object) -> bool:
    if isinstance(annotation, str):
        return "GlobalState" in annotation
    if isinstance(annotation, type):
        return annotation.__name__ == "GlobalState"
    return any(_is_global_state(part) for part in get_args(annotation))  # of Optional[GlobalState]


def maybe_inject_state(
    forward_step_func: ForwardStep, state: object, needs_injection: bool | None = None
) -> ForwardStep:
    """Bind the state to the parameter for it, if `needs_injection`; None means: inspect the signature.

    With True and a function without such a parameter, the state becomes the first argument. The bound function
    references the state object, so that it sees later changes.
    """
    if needs_injection is False:
        return forward_step_func
    position = _state_position(forward_step_func)
    if position is None and needs_injection is None:
        return forward_step_func
    if not position:
        return partial(forward_step_func, state)
    parameter = list(inspect.signature(forward_step_func).parameters.values())[position]
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        return partial(forward_step_func, **{parameter.name: state})

    def with_state(*arguments: Any, **keywords: Any) -> Any:
        return forward_step_func(*arguments[:position], state, *arguments[position:], **keywords)

    return with_state


def prepare_forward_step_func(forward_step_func: ForwardStep, state: object) -> ForwardStep:
    """Return a forward step that takes no state. Call this function once per run, not once per step."""
    return maybe_inject_state(forward_step_func, state)


def checked_output(returned: Any, *, has_loss: bool = True) -> tuple[Any, Any]:
    """Return the result of a forward step: the output of the model, and the loss function for it.

    Args:
        returned: result of the forward step.
        has_loss: False: the loss function may be None, on a stage without a loss.

    Raises:
        ForwardStepError: the result is something else.
    """
    if isinstance(returned, tuple | list) and len(returned) == 2:
        output, loss_function = returned
        if callable(loss_function) or (loss_function is None and not has_loss):
            return output, loss_function
    raise ForwardStepError(
        f"forward step: returned {type(returned).__name__}, but a schedule needs the output and a function of it, "
        "which a pipeline calls on its last stage. Write: return output, lambda output: (loss, {'loss': "
        "loss.detach()})."
    )


def checked_loss(returned: Any) -> tuple[Any, ...]:
    """Return the result of a loss function: the loss, possibly the number of tokens, and the report. Reads no value.

    Raises:
        ForwardStepError: the result is something else, or the loss has no gradient although gradients are enabled.
    """
    if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
        raise ForwardStepError(
            f"loss function: returned {type(returned).__name__}, but the loop also needs what to report. Write: return "
            "loss, {'loss': loss.detach()}; or the sum of the losses, the number of tokens, and {name: tensor}."
        )
    loss, report = returned[0], returned[-1]
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not isinstance(report, Mapping):
        shape = f"{tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ForwardStepError(
            f"loss function: returned a loss ({shape}) and a report ({type(report).__name__}), but the first must be a "
            "tensor with one element and the last a dictionary. Write: return loss, {'loss': loss.detach()}."
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise ForwardStepError(
            "loss function: returned a loss without a gradient, so the step could not change any parameter. It was "
            "detached, computed under torch.no_grad(), or all parameters are frozen. Return the loss itself."
        )
    return tuple(returned)


def inspected_forward_step(
    forward_step_func: ForwardStep,
    state: object,
    *,
    inspect_loss: Callable[[Any], object] | None = None,
) -> ForwardStep:
    """Return a forward step that takes no state, checks its results, and passes each loss to `inspect_loss`.

    Logged losses that share the memory of the loss are copied: Megatron's schedules divide the loss in place by the
    number of microbatches, and `loss.detach()` would be divided with it. A step may be wrapped more than once.

    Args:
        forward_step_func: `(iterator, model)` or `(state, iterator, model)`; returns the output of the model and the
            loss function for it, or None on stages without a loss.
        state: global state for a forward step with a parameter for it.
        inspect_loss: called with the first value of the loss function's result, detached; None: losses are not
            inspected. The result for non-loss data is not.

    The forward step raises a ForwardStepError if the user's step or loss function returns something else than
    Megatron's schedules need, or what they would accept in silence: a loss without a gradient, or without a number of
    tokens for a model with `calculate_per_token_loss`.
    """
    step = maybe_inject_state(forward_step_func, state)

    def inspected(iterator: Any, model: Any, *arguments: Any, **options: Any) -> Any:
        output, loss_function = checked_output(step(iterator, model, *arguments, **options), has_loss=False)
        if loss_function is None:
            return output, None

        def loss_of(output: Any, **selection: Any) -> Any:
            result = loss_function(output, **selection)
            if selection.get("non_loss_data"):
                return result
            loss, *tokens, logged = checked_loss(result)
            if not tokens and torch.is_grad_enabled() and _divides_by_tokens(model):
                raise ForwardStepError(
                    "loss function: returned (loss, report) without a number of tokens, but with "
                    "model.calculate_per_token_loss=true Megatron adds the gradients of all data-parallel ranks and "
                    "divides them by this number, so they would be too large. Set model.calculate_per_token_loss=false "
                    "for a mean over microbatches; or return the sum of the losses, the number of tokens, and the "
                    "report."
                )
            if inspect_loss is not None:
                inspect_loss(loss.detach())
            return loss, *tokens, {name: _own_memory(value, loss) for name, value in logged.items()}

        return output, loss_of

    return inspected


def _divides_by_tokens(model: Any) -> bool:
    """Return whether Megatron divides the gradients of a model chunk by the tokens of its loss function."""
    config = getattr(model, "config", None)
    return bool(getattr(config, "calculate_per_token_loss", False))


def _own_memory(value: Any, loss: Tensor) -> Any:
    """Return a logged value, copied if it shares the memory of the loss."""
    shared = isinstance(value, Tensor) and value.data_ptr() == loss.data_ptr()
    return value.detach().clone() if shared else value
