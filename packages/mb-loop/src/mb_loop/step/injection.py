"""Injection of the global state into forward steps that have a parameter for it.

A forward step takes `(iterator, model)` or `(state, iterator, model)`, each with or without an additional
`return_schedule_plan`. The signature is inspected once per run. An annotated state may be at any position.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

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
