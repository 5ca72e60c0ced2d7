"""State of the rerun state machine in a checkpoint: storing it, and the conditions for restoring it."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from mb_checkpoint.context import RerunStateMachineLike

RERUN_KEY = "rerun_state_machine"


@runtime_checkable
class ShardedEntry(Protocol):
    """Entry of which each rank stores its own value; Megatron's `ShardedObject` matches."""

    @property
    def unique_key(self) -> str:
        """Name of this rank's value."""

    @property
    def data(self) -> Any:
        """The value."""


def rerun_entry(machine: RerunStateMachineLike | None) -> dict[str, Any]:
    """Return the entry of the rerun state machine in a save; empty without a machine or without state."""
    state = None if machine is None else machine.state_dict()
    return {} if state is None else {RERUN_KEY: state}


def rerun_request(
    machine: RerunStateMachineLike | None, *, objects: frozenset[str], same_layout: bool
) -> tuple[dict[str, Any], str | None]:
    """Return the entry to request on load, and a note if the stored state belongs to another parallel layout.

    Args:
        machine: State machine with one shard per rank; None requests nothing.
        objects: Unique keys of the stored objects.
        same_layout: Whether tensor and pipeline parallel sizes are those of the checkpoint.
    """
    if machine is None:
        return {}, None
    template = machine.state_dict(template=True)
    shards = _shards(template)
    if same_layout and shards and shards <= objects:
        return {RERUN_KEY: template}, None
    families = {shard.partition("/")[0] for shard in shards}
    if any(key.partition("/")[0] in families for key in objects):
        return (
            {},
            "rerun machine: stored for another parallel layout; a step queued for a rerun is not run again",
        )
    return {}, None


def take_over(machine: RerunStateMachineLike | None, loaded: Mapping[str, Any], *, requested: bool) -> None:
    """Restore the state of the machine, if it was requested."""
    if machine is not None and requested:
        machine.load_state_dict(loaded[RERUN_KEY])


def _shards(state: Mapping[str, Any] | None) -> set[str]:
    return {str(value.unique_key) for value in (state or {}).values() if isinstance(value, ShardedEntry)}


def entries_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a machine as separate entries; per-rank state has a per-rank name."""
    return {
        _entry(name, value): value.data if isinstance(value, ShardedEntry) else value
        for name, value in state.items()
    }


def rebuilt(template: Mapping[str, Any], loaded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that a template requests, from the entries that were read."""
    return {name: loaded[_entry(name, value)] for name, value in template.items()}


def _entry(name: str, value: Any) -> str:
    return str(value.unique_key) if isinstance(value, ShardedEntry) else f"{RERUN_KEY}.{name}"
