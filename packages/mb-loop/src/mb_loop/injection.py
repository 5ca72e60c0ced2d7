"""Hand the global state to forward steps that ask for it.

A forward step takes `(iterator, model)` or `(state, iterator, model)`, each with or without a further
`return_schedule_plan`. Which one is found out once per run.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

ForwardStep = Callable[..., Any]


def needs_global_state_injection(forward_step_func: ForwardStep) -> bool:
    """Say whether the function wants the state as its first argument.

    True when a parameter is annotated with a class called GlobalState (or a string that names it), or when the
    first parameter is called `state` or `global_state`. For a callable object its `__call__` is looked at.
    """
    parameters = list(inspect.signature(forward_step_func).parameters.values())
    if any(_is_global_state(parameter.annotation) for parameter in parameters):
        return True
    return bool(parameters) and parameters[0].name in ("state", "global_state")


def _is_global_state(annotation: object) -> bool:
    if isinstance(annotation, str):
        return "GlobalState" in annotation
    return isinstance(annotation, type) and annotation.__name__ == "GlobalState"


def maybe_inject_state(
    forward_step_func: ForwardStep, state: object, needs_injection: bool | None = None
) -> ForwardStep:
    """Bind the state as first argument when that is wanted; None means: look.

    The bound function holds the state itself, so it sees every later change.
    """
    if needs_injection is None:
        needs_injection = needs_global_state_injection(forward_step_func)
    return partial(forward_step_func, state) if needs_injection else forward_step_func


def prepare_forward_step_func(forward_step_func: ForwardStep, state: object) -> ForwardStep:
    """Return a forward step that is called without the state. Call it once per run, not once per step."""
    return maybe_inject_state(forward_step_func, state)
