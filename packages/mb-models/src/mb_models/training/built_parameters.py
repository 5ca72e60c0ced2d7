"""Number of parameters of a model that is built. Imports torch and megatron."""

from collections.abc import Sequence

import torch
from megatron.core.process_groups_config import ProcessGroupCollection


def built_parameter_count(chunks: Sequence[torch.nn.Module], groups: ProcessGroupCollection) -> int:
    """Return the parameters of the complete model, each counted once, from the chunks of all pipeline stages.

    Collective over the pipeline group. A tensor-parallel shard counts with the shards of the other ranks, and a local
    expert with those of the other ranks; a copy of the embedding on the last stage (attribute `shared`) does not count.
    """
    local = 0
    for chunk in chunks:
        for parameter in chunk.parameters():
            if not vars(parameter).get("shared", False):
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
        return int(groups.ep.size() * (groups.expt_tp.size() if is_split else 1))
    return int(groups.tp.size()) if is_split else 1
