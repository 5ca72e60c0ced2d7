"""State of two tensors on Megatron Core's sharded tensors: the minimum of a checkpoint.

Imports Megatron: for processes in which `mb_host.install()` has run.
"""

from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import (
    dict_list_map_outplace,
    extract_matching_values,
    nested_values,
)

from mb_checkpoint import (
    CheckpointConfig,
    CheckpointLoadContext,
    CheckpointSaveContext,
    DefaultCheckpointManager,
)
from mb_checkpoint.local.checkpoints import LocalState
from mb_checkpoint.state.train_state import encode_train_state

ALONE = SimpleNamespace(rank=lambda: 0, size=lambda: 1)


class TinyModel:
    """Model with a tensor sharded over the ranks, and a replicated one."""

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
    """Train state."""

    def __init__(self, step):
        self.step = step

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


class Schedule:
    """Scheduler."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"num_steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["num_steps"]


class MemoryLocalStore:
    """Local checkpoints in memory instead of on a disk of the node; matches `LocalStoreLike`."""

    def __init__(self, *, full=False):
        self.full, self.kept = full, {}

    def save(self, state, step):
        if self.full:
            raise OSError(28, "No space left on device")
        sharded, common = extract_matching_values(state, is_sharded)
        parts = {}
        dict_list_map_outplace(lambda each: parts.update({name_of(each): clone_of(each.data)}), sharded)
        objects = [each.unique_key for each in nested_values(sharded) if isinstance(each, ShardedObject)]
        self.kept[step] = common, parts, objects
        return Path("shelf")

    def latest(self):
        return max(self.kept, default=None)

    def load(self):
        common, parts, objects = self.kept[max(self.kept)]

        def fill(requested):
            return {**common, **dict_list_map_outplace(lambda each: parts[name_of(each)], requested)}

        return LocalState(common=common, objects=frozenset(objects), fill=fill)


def is_sharded(value):
    return isinstance(value, (ShardedObject, ShardedTensor))


def name_of(part):
    return part.unique_key if isinstance(part, ShardedObject) else part.key


def clone_of(data):
    return data.clone() if torch.is_tensor(data) else data


def written_by_another_trainer(folder, step):
    """Write a checkpoint with Megatron's own functions: no manifest, no layout, no random states."""
    path = folder / f"iter_{step:07d}"
    path.mkdir(parents=True)
    state = {"checkpoint_version": 3.0, "iteration": step, "model": TinyModel(step).sharded_state_dict()}
    dist_checkpointing.save({**state, "lr_scheduler": {"num_steps": 8 * step}}, str(path))
    (path / "train_state.pt").write_bytes(encode_train_state({"step": step}))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


class TinyStateRun:
    """State that a rank saves and loads."""

    def __init__(self, root, step, **section):
        self.model = TinyModel(step)
        config = SimpleNamespace(to_yaml=lambda path: Path(path).write_text("train: {}\n"))
        self.state = SimpleNamespace(train_state=Counters(step), cfg=config)
        self.scheduler = None
        self.groups = SimpleNamespace(tp=ALONE, pp=ALONE, dp_cp=dist.group.WORLD)
        self.manager = DefaultCheckpointManager(
            CheckpointConfig(**{"save": str(root), "load": str(root), "most_recent_k": 2, **section})
        )

    def to_save(self, **options):
        return CheckpointSaveContext(
            state=self.state,
            model=[self.model],
            optimizer=None,
            opt_param_scheduler=self.scheduler,
            num_floating_point_operations_so_far=0,
            pg_collection=self.groups,
            **options,
        )

    def to_load(self, **options):
        return CheckpointLoadContext(
            state=self.state,
            model=[self.model],
            optimizer=None,
            opt_param_scheduler=self.scheduler,
            pg_collection=self.groups,
            **options,
        )

    def save(self, **options):
        done = self.manager.save(self.to_save(**options))
        return self.manager.finalize_async_saves(blocking=True, terminate=True) or done

    def load(self, **options):
        self.manager.load(self.to_load(**options))
        return self.manager.loaded
