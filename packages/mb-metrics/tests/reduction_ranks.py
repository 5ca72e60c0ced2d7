"""Reductions of single values and DTensor norms, run on four ranks."""

import math

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from mb_metrics import (
    calc_dtensor_params_l2_norm,
    calc_params_l2_norm,
    logical_and_across_model_parallel_group,
    reduce_max_memory_across_pp_group,
    reduce_max_stat_across_model_parallel_group,
)


def reduce_stats(rows):
    """Return the maximum of each row, whose entries are the ranks' numbers."""
    return [
        reduce_max_stat_across_model_parallel_group(row[dist.get_rank()], dist.group.WORLD) for row in rows
    ]


def agree(rows):
    """Return the logical and over all ranks for each row."""
    return [logical_and_across_model_parallel_group(row[dist.get_rank()], dist.group.WORLD) for row in rows]


def largest_memory(reports):
    """Return the reduced report of this rank."""
    return reduce_max_memory_across_pp_group(reports[dist.get_rank()], dist.group.WORLD)


def dtensor_norms():
    """Return by name the norm of DTensors on a 2 x 2 mesh, and torch's norm of the same full tensors."""
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (2, 2))
    whole = [torch.randn(5, 3), torch.randn(4, 4), torch.randn(7), torch.randn(1, 6)]
    placements = [
        (Shard(0), Replicate()),
        (Shard(0), Shard(1)),
        (Replicate(), Replicate()),
        (Shard(1), Shard(0)),
    ]
    spread = [distribute_tensor(each, mesh, where) for each, where in zip(whole, placements, strict=True)]
    wanted = math.sqrt(sum(float(each.double().square().sum()) for each in whole))
    module = torch.nn.ParameterList([torch.nn.Parameter(each) for each in [*spread, torch.full((9,), 2.0)]])
    found = {
        "spread": calc_dtensor_params_l2_norm(spread),
        "wanted": wanted,
        "mixed": calc_params_l2_norm(module),
        "mixed wanted": math.sqrt(wanted**2 + 36),
    }
    partial = DTensor.from_local(torch.ones(2), mesh, (Partial(), Replicate()))
    try:
        calc_dtensor_params_l2_norm([partial])
    except RuntimeError as error:
        found["error"] = str(error)
    return found
