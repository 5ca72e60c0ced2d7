"""Construction of Megatron's datasets, with sample indices that are built wherever they are missing.

Megatron's builder lets rank 0 build the indices and all other ranks load them, which needs a cache that all machines
share. Here the datasets of a process are constructed without regard to the process group: rank 0 first, as there, then
all others, of which one on each machine builds what is missing in its cache.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.datasets import blended_dataset, blended_megatron_dataset_builder, gpt_dataset

from mb_data.build_cache import one_builder
from mb_data.collectives import is_rank_zero, rank_zero_first

_MODULES = (blended_dataset, blended_megatron_dataset_builder, gpt_dataset)


def build_indices(build: Callable[[], list[Any]], *, folder: Path | None) -> list[Any]:
    """Return what `build` returns, which constructs datasets of Megatron. Collective over the default process group.

    Args:
        build: Constructs the datasets of this process.
        folder: Folder of their indices; None: they have none.
    """

    def action() -> list[Any]:
        if folder is None or is_rank_zero():
            with _rank(None):
                return build()
        try:
            with _rank(1):  # only loads: most ranks find what rank 0 built, and need no lock
                return build()
        except (OSError, ValueError, EOFError):  # an index is missing, or another process is writing it
            with one_builder(folder), _rank(None):
                return build()

    return rank_zero_first(action)


@contextmanager
def _rank(rank: int | None) -> Iterator[None]:
    """Set the rank that Megatron's dataset modules see: 1 loads indices, None (no process group) builds missing ones.

    Barriers have no effect. Only these modules are affected: `torch.distributed` itself stays as it is.
    """
    group = SimpleNamespace(
        is_initialized=lambda: rank is not None, get_rank=lambda: rank, barrier=lambda: None
    )
    with ExitStack() as stack:
        for module in _MODULES:
            stack.enter_context(patch.object(module, "torch", _TorchWithGroup(group)))
        yield


class _TorchWithGroup:
    """The module `torch`, with another `distributed`."""

    def __init__(self, distributed: Any) -> None:
        self.distributed = distributed

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
