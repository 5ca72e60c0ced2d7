"""Model chunks of a pipeline rank, for every model family.

Decides which chunk has the embedding (`pre_process`) and which has the output layer (`post_process`).
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig

Chunk = TypeVar("Chunk", bound=torch.nn.Module)


class StackSpec(Protocol):
    """Specification of the modules that make up the layers of a chunk."""

    def __call__(self, config: TransformerConfig, /, *, vp_stage: int | None, pp_rank: int | None) -> object:
        """Return the layers of one virtual stage (None: not interleaved) on pipeline rank `pp_rank`."""


def chunks_of_rank(
    provide: Callable[..., Chunk], *, stages: int | None, pg_collection: ProcessGroupCollection | None
) -> list[Chunk]:
    """Build this rank's chunks in the order of their virtual stages (`stages`; None: one chunk)."""
    groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
    first, last = groups.pp.rank() == 0, groups.pp.rank() == groups.pp.size() - 1
    if stages is None:
        return [provide(pre_process=first, post_process=last, pg_collection=groups)]
    return [
        provide(
            pre_process=first and stage == 0,
            post_process=last and stage == stages - 1,
            vp_stage=stage,
            pg_collection=groups,
        )
        for stage in range(stages)
    ]
