"""Record of a local checkpoint in memory, which the store of local checkpoints returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalState:
    """Local checkpoint in memory."""

    common: Mapping[str, Any]
    """State that is identical on all ranks."""
    objects: frozenset[str]
    """Unique keys of the stored objects of this rank."""
    fill: Callable[[dict[str, Any]], dict[str, Any]]
    """Function that returns the state that a sharded state dict requests. Collective."""
    tensors: frozenset[str] | None = None
    """Keys of the stored tensors of this rank; None: not known."""
