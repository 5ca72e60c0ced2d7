"""A state of two tensors on Megatron Core's sharded tensors: as little as a checkpoint can hold.

Imports Megatron: for processes in which `mb_host.install()` has run.
"""

from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing import ShardedTensor

from mb_checkpoint import (
    CheckpointConfig,
    CheckpointLoadContext,
    CheckpointSaveContext,
    DefaultCheckpointManager,
)

ALONE = SimpleNamespace(rank=lambda: 0, size=lambda: 1)


class TinyModel:
    """A tensor divided among the ranks, and one that all have."""

    def __init__(self, value):
        self.own, self.shared = torch.full((2, 3), float(value)), torch.full((5,), float(value))

    def sharded_state_dict(self, metadata=None):
        rank, world = dist.get_rank(), dist.get_world_size()
        return {
            "own": ShardedTensor.from_rank_offsets("own", self.own, (0, rank, world)),
            "shared": ShardedTensor.from_rank_offsets("shared", self.shared, replica_id=rank),
        }

    def load_state_dict(self, state, strict=True):
        vars(self).update(state if strict else {name: state[name] for name in vars(self) if name in state})

    def values(self):
        return {*self.own.flatten().tolist(), *self.shared.flatten().tolist()}


class Counters:
    """A train state."""

    def __init__(self, step):
        self.step = step

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


class Run:
    """What a rank saves and loads."""

    def __init__(self, root, step, **section):
        self.model = TinyModel(step)
        config = SimpleNamespace(to_yaml=lambda path: Path(path).write_text("train: {}\n"))
        self.state = SimpleNamespace(train_state=Counters(step), cfg=config)
        self.groups = SimpleNamespace(tp=ALONE, pp=ALONE, dp_cp=dist.group.WORLD)
        self.manager = DefaultCheckpointManager(
            CheckpointConfig(**{"save": str(root), "load": str(root), "most_recent_k": 2, **section})
        )

    def save(self, **wishes):
        context = CheckpointSaveContext(
            state=self.state,
            model=[self.model],
            optimizer=None,
            opt_param_scheduler=None,
            num_floating_point_operations_so_far=0,
            pg_collection=self.groups,
            **wishes,
        )
        done = self.manager.save(context)
        return self.manager.finalize_async_saves(blocking=True, terminate=True) or done

    def load(self, **wishes):
        context = CheckpointLoadContext(
            state=self.state,
            model=[self.model],
            optimizer=None,
            opt_param_scheduler=None,
            pg_collection=self.groups,
            **wishes,
        )
        self.manager.load(context)
        return self.manager.loaded
