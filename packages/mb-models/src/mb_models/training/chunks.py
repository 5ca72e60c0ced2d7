"""Model chunks of a pipeline rank, for every model family.

A rank has one chunk, or one per virtual stage if the pipeline is interleaved. `build_chunks` decides which chunk has
the embedding (`pre_process`) and which has the output layer (`post_process`); the provider of the family builds each
chunk, with layers from a `StackSpec`.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig

Chunk = TypeVar("Chunk", bound=torch.nn.Module)


class StackSpec(Protocol):
    """Function that returns the specification of a chunk's layers, such as `mb_models.local_spec`."""

    def __call__(self, config: TransformerConfig, /, *, vp_stage: int | None, pp_rank: int | None) -> object:
        """Return the specification for one virtual stage (None: not interleaved) on pipeline rank `pp_rank`.

        Its type depends on the family: Megatron's TransformerBlockSubmodules, a pair of them (encoder and decoder), or
        a ModuleSpec of the complete stack. It contains no modules; Megatron builds them.
        """


def build_chunks(
    provide: Callable[..., Chunk], *, vp_size: int | None, pg_collection: ProcessGroupCollection | None
) -> list[Chunk]:
    """Build this rank's chunks in the order of their virtual stages.

    Args:
        provide: Builds one chunk, such as `ModelProvider.provide`. Called as (pre_process=, post_process=,
            pg_collection=), and with vp_stage= if the pipeline is interleaved.
        vp_size: Virtual stages of each pipeline rank; None: not interleaved, one chunk.
        pg_collection: Process groups; None: those of Megatron's parallel_state.
    """
    groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
    first, last = groups.pp.rank() == 0, groups.pp.rank() == groups.pp.size() - 1
    if vp_size is None:
        return [provide(pre_process=first, post_process=last, pg_collection=groups)]
    return [
        provide(
            pre_process=first and stage == 0,
            post_process=last and stage == vp_size - 1,
            vp_stage=stage,
            pg_collection=groups,
        )
        for stage in range(vp_size)
    ]
