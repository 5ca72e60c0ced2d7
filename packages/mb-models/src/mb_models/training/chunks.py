"""Model chunks of a pipeline rank, for every model family.

A rank has one chunk, or one per virtual stage if the pipeline is interleaved. `build_chunks` decides which chunk has
the embedding (`pre_process`) and which has the output layer (`post_process`); the provider of the family builds each
chunk, with layers from a `StackSpec`. `built_parameter_count` counts the parameters of chunks.
"""

from collections.abc import Callable, Sequence
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


def built_parameter_count(chunks: Sequence[torch.nn.Module], groups: ProcessGroupCollection) -> int:
    """Return the parameters of the complete model, each counted once, from the chunks of all pipeline stages.

    Collective over the pipeline group. A tensor-parallel shard counts with the shards of the other ranks, and a local
    expert with those of the other ranks; a copy of the embedding on the last stage (attribute `shared`) does not count.
    A parameter of all experts of a layer (attribute `is_of_all_experts`) counts once.
    """
    local = 0
    for chunk in chunks:
        for parameter in chunk.parameters():
            attributes = vars(parameter)  # of Megatron
            if attributes.get("is_of_all_experts", False) or not attributes.get("shared", False):
                local += parameter.numel() * _shards(parameter, groups)
    device = next(chunks[0].parameters()).device
    total = torch.tensor(local, dtype=torch.int64, device=device)
    if groups.pp.size() > 1:
        torch.distributed.all_reduce(total, group=groups.pp)
    return int(total)


def _shards(parameter: torch.nn.Parameter, groups: ProcessGroupCollection) -> int:
    """Return the number of ranks that hold different parts of a parameter's tensor or of its layer's experts."""
    attributes = vars(parameter)  # of Megatron
    is_expert = not attributes.get("allreduce", True)
    is_split = attributes.get("tensor_model_parallel", False)
    if is_expert:
        experts = 1 if attributes.get("is_of_all_experts", False) else groups.ep.size()
        return int(experts * (groups.expt_tp.size() if is_split else 1))
    return int(groups.tp.size()) if is_split else 1
