"""State of callbacks in a checkpoint of a run: storing and restoring it, by the names of the callbacks."""

from collections.abc import Iterable, Mapping
from typing import Any

from mb_checkpoint.context import StatefulLike
from mb_checkpoint.errors import CheckpointLayoutError

CALLBACKS = "callbacks"
"""Entry of the state that is common to all ranks."""
_PLAIN = (bool, int, float, str, type(None))


def stateful_callbacks(callbacks: Iterable[object]) -> dict[str, StatefulLike]:
    """Return the callbacks with `state_dict` and `load_state_dict`, by the names of their classes.

    Further callbacks of a class are numbered in their order: EarlyStopping, EarlyStopping 2.
    """
    named: dict[str, StatefulLike] = {}
    for callback in callbacks:
        if isinstance(callback, StatefulLike):
            name, number = type(callback).__name__, 2
            while name in named:
                name, number = f"{type(callback).__name__} {number}", number + 1
            named[name] = callback
    return named


def callback_states(callbacks: Mapping[str, StatefulLike]) -> dict[str, Any]:
    """Return the entry with the states of the callbacks; empty without any.

    Raises:
        CheckpointLayoutError: A state has a value that is not of a plain type.
    """
    states = {name: _checked(dict(callback.state_dict()), name) for name, callback in callbacks.items()}
    return {CALLBACKS: states} if states else {}


def restore_callbacks(callbacks: Mapping[str, StatefulLike], common: Mapping[str, Any]) -> list[str]:
    """Restore the states of callbacks; return a note for each one of which the checkpoint holds none."""
    stored = common.get(CALLBACKS) or {}
    notes = []
    for name, callback in callbacks.items():
        if name in stored:
            callback.load_state_dict(stored[name])
        else:
            notes.append(f"callback {name}: the checkpoint holds no state of it; it starts fresh")
    return notes


def _checked(value: Any, path: str) -> Any:
    """Return a state of plain types, which a reader can load without unpickling objects."""
    if isinstance(value, dict):
        return {key: _checked(item, f"{path}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(item, f"{path}[{number}]") for number, item in enumerate(value)]
    if type(value) in _PLAIN:
        return value
    raise CheckpointLayoutError(
        f"callback {path}: its state_dict() has a value of type {type(value).__name__}, and only bool, int, float, "
        "str, None, lists and dictionaries of these are stored. Convert it, such as with item() or tolist()."
    )
