"""Temporary checkpoints on each node's own disk: quick, not shared, and lost with the node unless copied to another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.errors import LocalStoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalState:
    """A local checkpoint in memory."""

    common: Mapping[str, Any]
    """The part that is the same on all ranks."""
    objects: frozenset[str]
    """Unique keys of the stored objects of this rank."""
    fill: Callable[[dict[str, Any]], dict[str, Any]]
    """Returns the state that a sharded state dict asks for. Collective."""


class LocalStoreLike(Protocol):
    """Where local checkpoints are; `nvrx.LocalStore` fits. All methods are collective."""

    def save(self, state: dict[str, Any], step: int) -> Path:
        """Write a state."""

    def latest(self) -> int | None:
        """Return the newest whole step."""

    def load(self) -> LocalState:
        """Fetch it."""


def open_local_store(config: CheckpointConfig, group: Any) -> LocalStoreLike:
    """Open the store that the section asks for. Collective.

    Raises:
        LocalStoreError: nvidia-resiliency-ext is not installed, or cannot be imported.
    """
    try:
        door = import_module("mb_checkpoint.nvrx")
    except ImportError as error:
        raise LocalStoreError(
            "checkpoint.non_persistent_ckpt_type: local checkpoints are written by nvidia-resiliency-ext, which cannot "
            f"be imported ({error}). Install mb-checkpoint[nvrx], or set it to global."
        ) from error
    store: LocalStoreLike = door.LocalStore(config, group)
    return store
