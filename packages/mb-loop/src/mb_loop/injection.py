"""Hand the global state to forward steps that ask for it.

A forward step takes `(iterator, model)` or `(state, iterator, model)`, each with or without a further
`return_schedule_plan`. Which one is found out once per run. An annotated state may stand in another position, too.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

ForwardStep = Callable[..., Any]


def needs_global_state_injection(forward_step_func: ForwardStep) -> bool:
    """Say whether the function wants the state.

    True when a parameter is annotated with a class called GlobalState, with an optional one, or with a string that
    names it, or when the first parameter is called `state` or `global_state`. For a callable object its `__call__` is
    looked at.
    """
    return _state_position(forward_step_func) is not None


def _state_position(forward_step_func: ForwardStep) -> int | None:
    """Return which parameter takes the state, counted from 0; None: none of them."""
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
    """Bind the state to the parameter that asks for it, when that is wanted; None means: look.

    With True and a function that asks for none it is the first argument. The bound function holds the state itself, so
    it sees every later change.
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
    """Return a forward step that is called without the state. Call it once per run, not once per step."""
    return maybe_inject_state(forward_step_func, state)
