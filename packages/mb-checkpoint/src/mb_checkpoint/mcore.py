"""The door to Megatron Core: sharded state of model and optimizer, written and read as torch_dist."""

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.dist_checkpointing.serialization import load_common_state_dict
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelLoadStrategyWrapper
from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy
from megatron.core.dist_checkpointing.validation import verify_checkpoint
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.rerun_state_machine import Call, Caller, QuickStats, RerunValidationStatus
from megatron.core.tensor_parallel.random import (
    convert_cuda_rng_state,
    get_cuda_rng_tracker,
    is_graph_safe_cuda_rng_tracker,
)
from megatron.core.utils import unwrap_model

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import GroupLike
from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.param_groups import SCHEDULE, Policy, is_rounded
from mb_checkpoint.shards import read_index
from mb_checkpoint.unpickling import weights_only

RNG_KEY = "rng_state"
_SAFE = (Call, Caller, QuickStats, RerunValidationStatus)
"""Classes in the state of the rerun machine that Megatron Core does not register with torch as safe."""
EXACT_FLOPS = "num_floating_point_operations_so_far"
"""Entry with the whole number of FLOPs, of which float64 in train_state.pt keeps 15 digits."""
SHARDING_KEY = "distrib_optim_sharding_type"
_OPTIMIZER = re.compile(r"(chained_\d+\.)?optimizer\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointGroups:
    """The process groups that decide what this rank stores."""

    tp: GroupLike
    pp: GroupLike
    dp_cp: Any
    expt_dp: Any | None
    """Ranks that hold the same experts; None where nobody requested that group."""
    ep_size: int
    dp_rank: int
    dp_size: int
    is_first_of_replica: bool
    """Whether this rank is the first of all that work on the same data."""
    module_layouts: Mapping[str, Mapping[str, int]] | None = None
    """Module -> its parallel sizes, where modules have ranks of their own; the groups above are then no module's."""

    @classmethod
    def of(cls, pg_collection: Any | None) -> "CheckpointGroups":
        """Take them from a collection, or Megatron's own ones where there is none."""
        names = ["tp", "pp", "dp", "cp", "dp_cp", "ep", "expt_dp"]
        found = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=names)
        # a collection lacks the attributes of groups that nobody requested
        expert, data, context = (getattr(found, name, None) for name in ("ep", "dp", "cp"))
        firsts = [found.tp.rank(), found.pp.rank(), context.rank() if context else 0]
        return cls(
            tp=found.tp,
            pp=found.pp,
            dp_cp=found.dp_cp,
            expt_dp=getattr(found, "expt_dp", None),
            ep_size=expert.size() if expert else 1,
            dp_rank=(data or found.dp_cp).rank(),
            dp_size=(data or found.dp_cp).size(),
            is_first_of_replica=not any(firsts),
            module_layouts=getattr(found, "module_layouts", None),
        )

    def sharing(self, wish: str) -> Any:
        """Return the ranks that share the writing or reading: `dp` with context-parallel, or `ep_dp`.

        Raises:
            ValueError: The group requested is not in the collection.
        """
        if wish == "dp":
            return self.dp_cp
        if self.expt_dp is None:
            raise ValueError(
                "checkpoint.ckpt_fully_parallel_*_process_group: ep_dp, and the process groups that were passed have "
                "no expt_dp. Pass it, or set it to dp."
            )
        return self.expt_dp

    def layout(self, model: Sequence[Any]) -> dict[str, int]:
        """Return what must be equal for a layout-bound optimizer state to be readable.

        Of modules with ranks of their own that is the whole layout of each, as `<module>.<size>`.
        """
        if self.module_layouts is not None:
            sizes = {
                f"{module}.{name}": size
                for module, own in self.module_layouts.items()
                for name, size in own.items()
            }
            return {**sizes, "model_chunks": len(model)}
        return {
            "tensor_model_parallel_size": self.tp.size(),
            "pipeline_model_parallel_size": self.pp.size(),
            "expert_model_parallel_size": self.ep_size,
            "model_chunks": len(model),
        }

    def described(self, model: Sequence[Any]) -> dict[str, int]:
        """Return the layout for those who look at a checkpoint: that, and what may differ."""
        sizes = {"data_parallel_size": self.dp_cp.size()} if self.module_layouts is None else {}
        return {**self.layout(model), **sizes, "world_size": dist.get_world_size()}


def section_names(model: Sequence[Any]) -> list[str]:
    """Return `model`, or `model0`, `model1`, ... for several chunks."""
    return ["model"] if len(model) == 1 else [f"model{index}" for index in range(len(model))]


def model_sections(
    model: Sequence[Any], groups: CheckpointGroups, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the sharded weights of each chunk."""
    metadata = {**metadata, "dp_cp_group": groups.dp_cp}
    return {
        name: chunk.sharded_state_dict(metadata=metadata)
        for name, chunk in zip(section_names(model), unwrap_model(list(model)), strict=True)
    }


def load_model_sections(model: Sequence[Any], loaded: Mapping[str, Any], *, strict: bool) -> None:
    """Put loaded weights into the model chunks."""
    for name, chunk in zip(section_names(model), unwrap_model(list(model)), strict=True):
        chunk.load_state_dict(loaded[name], strict=strict)


def optimizer_section(
    optimizer: Any,
    sections: Mapping[str, Any],
    groups: CheckpointGroups,
    metadata: Mapping[str, Any],
    *,
    is_loading: bool,
) -> Any:
    """Return the sharded optimizer state that goes with sharded weights. Collective in some formats."""
    metadata = {**metadata, "dp_cp_group": groups.dp_cp}
    return optimizer.sharded_state_dict(dict(sections), is_loading=is_loading, metadata=metadata)


def has_state(optimizer: Any | None) -> bool:
    """Say whether there is an optimizer, and it is no stand-in for a rank without parameters."""
    return optimizer is not None and not getattr(optimizer, "is_stub_optimizer", False)


def optimizer_parts(optimizer: Any | None) -> list[Any]:
    """Return the optimizers inside this one."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))  # only Megatron's chain has the list


def distributed_parts(optimizer: Any | None) -> list[Any]:
    """Return the optimizers inside this one whose state is divided among data-parallel ranks."""
    return [part for part in optimizer_parts(optimizer) if isinstance(part, DistributedOptimizer)]


def parameter_groups(optimizer: Any) -> list[list[dict[str, Any]]]:
    """Return the parameter groups of each optimizer inside this one, parameters as their numbers in its state."""
    found = []
    for part in optimizer_parts(optimizer):
        first, groups = 0, []
        for group in part.param_groups:  # torch numbers the parameters of an optimizer in this order
            count = len(group["params"])
            groups.append({**group, "params": list(range(first, first + count))})
            first += count
        found.append(groups)
    return found


def set_schedule(optimizer: Any, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Give the parameter groups of each optimizer inside this one the schedule of others, which are in their order."""
    for part, fitted in zip(optimizer_parts(optimizer), groups, strict=True):
        for group, other in zip(part.param_groups, fitted, strict=True):
            group.update({key: other[key] for key in SCHEDULE if key in other})


def schedule_policy(scheduler: Any | None) -> Policy | None:
    """Return whose schedule applies after a load, by the flags of Megatron's scheduler; None for another scheduler."""
    if not isinstance(scheduler, OptimizerParamScheduler):
        return None
    if scheduler.override_opt_param_scheduler:
        return "configured"
    return "stored" if scheduler.use_checkpoint_opt_param_scheduler else "equal"


def load_scheduler(scheduler: Any, stored: Mapping[str, Any]) -> None:
    """Restore a scheduler, and the learning rates and weight decays that follow from it."""
    policy = schedule_policy(scheduler)
    warmup = stored.get("lr_warmup_steps")
    if policy == "equal" and is_rounded(warmup, scheduler.lr_warmup_steps):
        scheduler.lr_warmup_steps = warmup  # of a version that rounded: the schedule continues as it was
    scheduler.load_state_dict(dict(stored))
    if policy is not None:
        scheduler.step(increment=0)  # Megatron restores the weight decay after it has set the groups


def content_metadata(optimizer: Any | None, config: CheckpointConfig) -> dict[str, Any]:
    """Return how the content is laid out; stored in the checkpoint, and needed again to read it.

    The distributed optimizer's state is stored bucket by bucket (`dp_reshardable`), which any data-parallel
    size can read, unless `dist_ckpt_optim_fully_reshardable` asks for the form that any layout can read.
    """
    if config.ckpt_format == "fsdp_dtensor":
        return {SHARDING_KEY: config.ckpt_format} if has_state(optimizer) else {}
    metadata: dict[str, Any] = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if distributed_parts(optimizer):
        full = config.dist_ckpt_optim_fully_reshardable
        metadata[SHARDING_KEY] = "fully_reshardable" if full else "dp_reshardable"
    return metadata


def reject_padded_buckets(optimizer: Any | None, metadata: Mapping[str, Any]) -> None:
    """Refuse the one combination that Megatron Core writes wrongly without saying so.

    `fully_reshardable` joins the buckets of a buffer without their paddings and then cuts it up as if they
    were there: each parameter behind the first padding is stored shifted. Padding of the last bucket is harmless.

    Raises:
        CheckpointLayoutError: The optimizer has such buckets and this form is requested.
    """
    if metadata.get(SHARDING_KEY) != "fully_reshardable":
        return
    for part in distributed_parts(optimizer):
        for buffer in part.buffers:
            padding = sum(each.grad_data.numel() - each.numel_unpadded for each in buffer.buckets[:-1])
            if padding:
                raise CheckpointLayoutError(
                    "checkpoint.dist_ckpt_optim_fully_reshardable: this optimizer has "
                    f"{len(buffer.buckets)} buckets with {padding} elements of padding between them, and Megatron Core "
                    "then writes shifted optimizer states without an error. Set it to false, or make one "
                    "bucket (ddp.overlap_grad_reduce=false, or a ddp.bucket_size above the parameter count)."
                )


_NOISE = (
    "Please use DTensor instead and we are deprecating ShardedTensor",
    "torch.distributed is disabled, unavailable or uninitialized",
    "The argument order of (save|load) has been changed",
)
"""Warnings that torch gives Megatron Core for how it calls torch; nobody else can act on them."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what torch says to Megatron: the warnings above."""
    with warnings.catch_warnings():
        for message in _NOISE:
            warnings.filterwarnings("ignore", message=message)
        yield


def read(
    state: dict[str, Any], directory: Path, groups: CheckpointGroups, *, config: CheckpointConfig
) -> dict[str, Any]:
    """Read what a sharded state dict asks for. Collective over all ranks."""
    strategy: Any = TorchDistLoadShardedStrategy(stream_ckpt_dequant=config.stream_ckpt_dequant)
    if config.fully_parallel_load:
        algorithm = config.ckpt_fully_parallel_load_exchange_algo
        shared = groups.sharing(config.ckpt_fully_parallel_load_process_group)
        strategy = FullyParallelLoadStrategyWrapper(strategy, shared, exchange_algo=algorithm)
    with quiet(), weights_only(directory, classes=_SAFE):
        loaded: dict[str, Any] = dist_checkpointing.load(
            state,
            str(directory),
            strategy,
            validate_access_integrity=config.ckpt_load_validate_sharding_integrity,
            strict=config.dist_ckpt_strictness,
        )
    return loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContents:
    """What a checkpoint folder says that it holds, read without its tensors."""

    common: Mapping[str, Any]
    """The part that is the same on all ranks."""
    shapes: Mapping[str, tuple[int, ...]] | None
    """Global shape of each stored tensor; None where it is not known."""
    objects: frozenset[str]
    """Unique keys of the stored objects."""

    @property
    def metadata(self) -> dict[str, Any]:
        """How the content is laid out."""
        return dict(self.common.get("content_metadata") or {})

    @property
    def layout(self) -> Mapping[str, int] | None:
        """Parallel sizes of the run that wrote it, None where they are not recorded."""
        found: Mapping[str, int] | None = self.common.get("parallel_layout")
        return found

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer state is there."""
        return self.shapes is None or any(_OPTIMIZER.match(key) for key in (*self.shapes, *self.objects))

    @property
    def model_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights alone."""
        return {key: shape for key, shape in (self.shapes or {}).items() if not _OPTIMIZER.match(key)}


def read_contents(directory: Path) -> CheckpointContents:
    """Read what a checkpoint holds. Every rank reads the files by itself.

    The index is read by torch alone: Megatron's `load_sharded_metadata` passes each stored tensor property to
    `torch.empty`, which takes no `strides`, a property since torch 2.15.
    """
    verify_checkpoint(str(directory))
    index = read_index(directory)
    with quiet(), weights_only(directory, classes=_SAFE):
        common = load_common_state_dict(str(directory))
    return CheckpointContents(common=common, shapes=index.shapes, objects=index.objects)


def shapes_of(sections: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the global shape of each tensor that sharded weights of this rank ask for."""
    found: dict[str, tuple[int, ...]] = {}
    for entry in nested_values(dict(sections)):
        for part in _parts(entry):
            if isinstance(part, ShardedTensor):
                found[part.key] = tuple(part.global_shape)
    return found


def entries_in_checkpoint(sections: Mapping[str, Any], contents: CheckpointContents) -> dict[str, Any]:
    """Return the sharded weights without the entries that a checkpoint lacks, or all where that is not known."""
    if contents.shapes is None:
        return {section: dict(entries) for section, entries in sections.items()}
    known = contents.objects | contents.shapes.keys()

    def stored(entry: Any) -> bool:
        names = [
            part.unique_key if isinstance(part, ShardedObject) else part.key
            for part in _parts(entry)
            if isinstance(part, (ShardedObject, ShardedTensor))
        ]
        return known.issuperset(names)

    return {
        section: {name: entry for name, entry in entries.items() if stored(entry)}
        for section, entries in sections.items()
    }


def _parts(entry: Any) -> list[Any]:
    """Return what an entry of a sharded state dict is written as."""
    built = entry.build() if isinstance(entry, ShardedTensorFactory) else entry
    return list(nested_values(built)) if isinstance(built, (dict, list)) else [built]


class MegatronRng:
    """Megatron's generator tracker, with states that can be stored: CPU tensors in either of its modes."""

    def get_states(self) -> dict[str, torch.Tensor]:
        """Return the state of each name."""
        states = get_cuda_rng_tracker().get_states()
        return {name: convert_cuda_rng_state(state, to_graphable=False) for name, state in states.items()}

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Replace all states."""
        tracker = get_cuda_rng_tracker()
        graphable = is_graph_safe_cuda_rng_tracker(
            tracker
        )  # Megatron's in one mode, Transformer Engine's always
        tracker.set_states(
            {name: convert_cuda_rng_state(state, to_graphable=graphable) for name, state in states.items()}
        )


def rng_object(state: object, groups: CheckpointGroups, *, per_replica: bool) -> ShardedObject:
    """Return the place of this rank's random state: one per (pp, tp), or per (pp, tp, dp x cp) rank.

    With `state=None` it asks for the stored one instead.
    """
    if per_replica:
        return per_rank_object(RNG_KEY, state, groups)
    shape, offset = (groups.pp.size(), groups.tp.size()), (groups.pp.rank(), groups.tp.rank())
    return ShardedObject(RNG_KEY, state, shape, offset, replica_id=groups.dp_cp.rank())


def per_rank_object(key: str, value: object, groups: CheckpointGroups) -> ShardedObject:
    """Return the place of something that each rank has one of: by (pp, tp, dp x cp) rank. With None it asks for it."""
    axes = (groups.pp, groups.tp, groups.dp_cp)
    shape, offset = tuple(axis.size() for axis in axes), tuple(axis.rank() for axis in axes)
    return ShardedObject(key, value, shape, offset, replica_id=0)
