"""The state of a machine that runs suspicious steps again: what a checkpoint keeps of it, and when it is taken over."""

from collections.abc import Mapping
from typing import Any

from mb_checkpoint.context import RerunStateMachineLike

RERUN_KEY = "rerun_state_machine"


def rerun_entry(machine: RerunStateMachineLike | None) -> dict[str, Any]:
    """Return what a save adds to the state; nothing without a machine, or where it has nothing to keep."""
    state = None if machine is None else machine.state_dict()
    return {} if state is None else {RERUN_KEY: state}


def rerun_request(
    machine: RerunStateMachineLike | None, *, objects: frozenset[str], same_layout: bool
) -> tuple[dict[str, Any], str | None]:
    """Return what a load asks for, and a note where what is stored belongs to another layout.

    Args:
        machine: asks for as many shards as there are ranks; None: nothing is requested.
        objects: unique keys of the stored objects.
        same_layout: tensor and pipeline parallel sizes are those of the checkpoint.
    """
    if machine is None:
        return {}, None
    template = machine.state_dict(template=True)
    shards = _shards(template)
    if same_layout and shards and shards <= objects:
        return {RERUN_KEY: template}, None
    families = {shard.partition("/")[0] for shard in shards}
    if any(key.partition("/")[0] in families for key in objects):
        return {}, "rerun machine: stored for another parallel layout; a step that waited is not run again"
    return {}, None


def take_over(machine: RerunStateMachineLike | None, loaded: Mapping[str, Any], *, requested: bool) -> None:
    """Hand a loaded state to the machine, where it was requested."""
    if machine is not None and requested:
        machine.load_state_dict(loaded[RERUN_KEY])


def _shards(state: Mapping[str, Any] | None) -> set[str]:
    """Return the unique keys of the sharded objects in a state."""
    return {str(value.unique_key) for value in (state or {}).values() if hasattr(value, "unique_key")}


def entries_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a machine's state as separate entries, what each rank has of its own under a name of its own."""
    return {_entry(name, value): getattr(value, "data", value) for name, value in state.items()}


def rebuilt(template: Mapping[str, Any], loaded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that was requested by a template, from the entries that were read."""
    return {name: loaded[_entry(name, value)] for name, value in template.items()}


def _entry(name: str, value: Any) -> str:
    return str(value.unique_key) if hasattr(value, "unique_key") else f"{RERUN_KEY}.{name}"
