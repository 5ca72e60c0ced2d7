"""Access to Megatron Core: sharded state of model and optimizer, written and read as torch_dist."""

import contextlib
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.dist_checkpointing.serialization import load_common_state_dict
from megatron.core.dist_checkpointing.validation import verify_checkpoint
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import (
    Float16OptimizerWithFloat16Params,
    FP32Optimizer,
    MixedPrecisionOptimizer,
)
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.rerun_state_machine import Call, Caller, QuickStats, RerunValidationStatus
from megatron.core.tensor_parallel.random import (
    convert_cuda_rng_state,
    get_cuda_rng_tracker,
    is_graph_safe_cuda_rng_tracker,
)
from megatron.core.utils import unwrap_model
from torch.optim import Optimizer

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.formats.megatron_lm import layout_of
from mb_checkpoint.formats.unpickling import weights_only
from mb_checkpoint.load.param_groups import NOT_IN_MEGATRON_STATE, SCHEDULE, Policy, is_rounded
from mb_checkpoint.load.verified_reads import VerifiedReads
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.megatron.load_strategy import LoadStrategy
from mb_checkpoint.megatron.param_remainders import complete_main_params, either_main_params
from mb_checkpoint.megatron.shards import read_index, same_local_shards
from mb_checkpoint.megatron.step_counts import (
    inner_optimizer,
    stored_steps,
    synchronize_hybrid,
    with_step_counts,
)
from mb_checkpoint.megatron.torch_optimizer import TorchOptimizerState

RNG_KEY = "rng_state"
"""Entry with the random states, under Megatron-LM's name."""
_SAFE = (Call, Caller, QuickStats, RerunValidationStatus)
"""Classes in the state of the rerun machine that Megatron Core does not register with torch as safe."""
EXACT_FLOPS = "num_floating_point_operations_so_far"
"""Entry with the exact integer number of FLOPs, of which float64 in train_state.pt keeps 15 digits."""
SHARDING_KEY = "distrib_optim_sharding_type"
"""Entry of the metadata with the form of the distributed optimizer's state."""
_MAIN_PARAMS = "fp32_from_fp16_params"
"""Entry of a half-precision optimizer with its main parameters, a list for each parameter group."""
_OPTIMIZER = re.compile(r"(chained_\d+\.)?optimizer\.")
"""Keys of the optimizer state."""
_CREATED_BY_FIRST_UPDATE = re.compile(r"(chained_\d+\.)?optimizer\.(?!state\.fp32_param\.)")
"""Keys of the optimizer state other than those of the main parameters, which exist before the first update."""


def section_names(model: Sequence[Any]) -> list[str]:
    """Return `model`, or `model0`, `model1`, ... for several chunks."""
    return ["model"] if len(model) == 1 else [f"model{index}" for index in range(len(model))]


def model_sections(
    model: Sequence[Any], groups: CheckpointGroups, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the sharded weights of each chunk."""
    metadata = {**metadata, "dp_cp_group": groups.dp_cp}
    chunks = zip(section_names(model), unwrap_model(list(model)), strict=True)
    with same_local_shards():
        return {name: chunk.sharded_state_dict(metadata=metadata) for name, chunk in chunks}


def load_model_sections(model: Sequence[Any], loaded: Mapping[str, Any], *, strict: bool) -> None:
    """Load weights into the model chunks."""
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
    """Return the sharded optimizer state that corresponds to sharded weights.

    Collective over the data-parallel ranks when it is saved as `fully_reshardable`, which gathers the state.
    """
    metadata = {**metadata, "dp_cp_group": groups.dp_cp}
    if isinstance(optimizer, Optimizer):
        optimizer = TorchOptimizerState(optimizer)
    elif is_loading:
        for part in optimizer_parts(optimizer):
            # None for SGD, and Megatron calls it without checking.
            if getattr(part, "init_state_fn", make_momenta) is None:
                part.init_state_fn = make_momenta
    complete = metadata.get(SHARDING_KEY) == "fully_reshardable"
    with same_local_shards(), complete_main_params(distributed_parts(optimizer) if complete else []):
        section = optimizer.sharded_state_dict(dict(sections), is_loading=is_loading, metadata=metadata)
    return _without_classes(section)


def make_momenta(optimizer: Optimizer, _config: Any = None) -> None:
    """Create the momenta of an SGD that has none, as its first step does."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if group.get("momentum") and not optimizer.state[parameter]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _without_classes(entry: Any) -> Any:
    """Return an optimizer section without the classes that HybridDeviceOptimizer has among the settings of its groups.

    A checkpoint that names a class is rejected when it is read; this run's optimizer has its own.
    """
    if isinstance(entry, Mapping):
        return {key: _without_classes(item) for key, item in entry.items() if not isinstance(item, type)}
    if isinstance(entry, list):
        return [_without_classes(item) for item in entry]
    if isinstance(entry, ShardedObject):
        entry.data = _without_classes(entry.data)
    return entry


@torch.no_grad()  # main parameters in float32 are leaves that require gradients, and are written in place
def load_optimizer_section(optimizer: Any, loaded: dict[Any, Any]) -> None:
    """Load the optimizer state of `optimizer_section`, also that of another implementation of Adam."""
    parts = [part for part in optimizer_parts(optimizer) if has_state(part)]
    states = [loaded] if len(parts) == 1 else [loaded[number] for number in range(len(parts))]
    # All optimizers of a chain step together. One without parameters on the rank that saved has counted nothing.
    steps = max((count for state in states if (count := stored_steps(state)) is not None), default=None)
    counted = [with_step_counts(part, state, steps=steps) for part, state in zip(parts, states, strict=True)]
    loaded = counted[0] if len(parts) == 1 else {**loaded, **dict(enumerate(counted))}
    target = TorchOptimizerState(optimizer) if isinstance(optimizer, Optimizer) else optimizer
    with either_main_params([part for part in distributed_parts(optimizer) if has_state(part)]):
        target.load_state_dict(loaded)
    for part in parts:
        synchronize_hybrid(part)


_MAY_BE_STUBS = (FP32Optimizer, Float16OptimizerWithFloat16Params, DistributedOptimizer)
"""Optimizers of Megatron that a rank without trainable parameters has as a stub, and that have a flag for it."""


def has_state(optimizer: Any | None) -> bool:
    """Return whether there is an optimizer other than the stub of a rank without parameters."""
    stub = isinstance(optimizer, _MAY_BE_STUBS) and optimizer.is_stub_optimizer
    return optimizer is not None and not stub


def optimizer_parts(optimizer: Any) -> list[Any]:
    """Return the chained optimizers, or the single optimizer, as a list."""
    # Megatron's ChainedOptimizer, and optimizers of modules with per-module parallelism, which do not derive from it
    return list(optimizer.chained_optimizers) if hasattr(optimizer, "chained_optimizers") else [optimizer]


def optimizers_without_state(optimizer: Any | None) -> list[Optimizer]:
    """Return the optimizers of torch inside Megatron's that have not made a step, nor loaded a state."""
    parts = optimizer_parts(optimizer) if has_state(optimizer) else []
    outer = [inner_optimizer(part) for part in parts if has_state(part)]
    every = [each for inner in outer for each in (inner, *getattr(inner, "sub_optimizers", ()))]
    return [each for each in every if not each.state]


def grad_scaler(part: Any) -> Any | None:
    """Return the gradient scaler of an optimizer, which only half precision has."""
    return part.grad_scaler if isinstance(part, MixedPrecisionOptimizer) else None


def distributed_parts(optimizer: Any | None) -> list[Any]:
    """Return the chained optimizers whose state is sharded over data-parallel ranks."""
    return [part for part in optimizer_parts(optimizer) if isinstance(part, DistributedOptimizer)]


def parameter_groups(optimizer: Any) -> list[list[dict[str, Any]]]:
    """Return the parameter groups of each chained optimizer, with parameters as indices into its state."""
    part_groups = []
    for part in optimizer_parts(optimizer):
        first, groups = 0, []
        for group in part.param_groups:  # torch numbers the parameters of an optimizer in this order
            count = len(group["params"])
            groups.append({**group, "params": list(range(first, first + count))})
            first += count
        part_groups.append(groups)
    return part_groups


def set_schedule(optimizer: Any, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Copy the schedule of fitted groups, in the same order, to the parameter groups of each chained optimizer."""
    for part, fitted in zip(optimizer_parts(optimizer), groups, strict=True):
        for group, fitted_group in zip(part.param_groups, fitted, strict=True):
            group.update({key: fitted_group[key] for key in SCHEDULE if key in fitted_group})


def schedule_policy(scheduler: Any | None) -> Policy | None:
    """Return the schedule to apply after a load, by the flags of Megatron's scheduler; None for another scheduler."""
    if not isinstance(scheduler, OptimizerParamScheduler):
        return None
    if scheduler.override_opt_param_scheduler:
        return "configured"
    return "stored" if scheduler.use_checkpoint_opt_param_scheduler else "equal"


def scheduler_state(scheduler: Any) -> dict[str, Any]:
    """Return the state of a scheduler; for Megatron's, with the settings that its `state_dict` omits."""
    state: dict[str, Any] = scheduler.state_dict()
    if schedule_policy(scheduler) is None:
        return state
    return {**state, **{name: getattr(scheduler, name) for name in NOT_IN_MEGATRON_STATE}}


def load_scheduler(scheduler: Any, stored: Mapping[str, Any]) -> None:
    """Restore a scheduler, and the learning rates and weight decays that follow from it."""
    policy = schedule_policy(scheduler)
    if policy is not None:
        scheduler.num_steps = 0  # Megatron adds the stored number
    if policy == "stored":
        for name in NOT_IN_MEGATRON_STATE & stored.keys():
            setattr(scheduler, name, stored[name])
    warmup = stored.get("lr_warmup_steps")
    if policy == "equal" and is_rounded(warmup, scheduler.lr_warmup_steps):
        scheduler.lr_warmup_steps = warmup  # saved by a version that rounded: keep that schedule
    scheduler.load_state_dict(dict(stored))
    if policy is not None:
        scheduler.step(increment=0)  # Megatron restores the weight decay after it has set the groups


def content_metadata(optimizer: Any | None, config: CheckpointConfig) -> dict[str, Any]:
    """Return the layout of the content, which is stored in the checkpoint and required to read it.

    The state of the distributed optimizer is stored bucket by bucket (`dp_reshardable`), which any data-parallel size
    can read, unless `dist_ckpt_optim_fully_reshardable` selects the form that any parallel layout can read.
    """
    if config.ckpt_format == "fsdp_dtensor":
        return {SHARDING_KEY: config.ckpt_format} if has_state(optimizer) else {}
    metadata: dict[str, Any] = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if distributed_parts(optimizer):
        full = config.dist_ckpt_optim_fully_reshardable
        metadata[SHARDING_KEY] = "fully_reshardable" if full else "dp_reshardable"
    return metadata


def reject_empty_tensors(sections: Mapping[str, Any]) -> None:
    """Reject a tensor without elements, on which Megatron Core's writer ends in a division by zero.

    Raises:
        CheckpointLayoutError: The sharded weights have one.
    """
    for key, shape in shapes_of(sections).items():
        if 0 in shape:
            raise CheckpointLayoutError(
                f"checkpoint save: {key} has no elements (shape {list(shape)}), which Megatron Core's format cannot "
                "hold. Register it with persistent=False if it is a buffer, or give it at least one element."
            )


def reject_padded_buckets(optimizer: Any | None, metadata: Mapping[str, Any]) -> None:
    """Reject the combination that Megatron Core writes incorrectly without an error.

    `fully_reshardable` concatenates the buckets of a buffer without their padding and then slices the result as if the
    padding were present: each parameter after the first padding is stored shifted. Padding of the last bucket is
    harmless.

    Raises:
        CheckpointLayoutError: The optimizer has such buckets and this form is selected.
    """
    if metadata.get(SHARDING_KEY) != "fully_reshardable":
        return
    for part in distributed_parts(optimizer):
        for buffer in part.buffers:
            padding = sum(bucket.grad_data.numel() - bucket.numel_unpadded for bucket in buffer.buckets[:-1])
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
"""Warnings of torch about calls that Megatron Core makes; users cannot act on them."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings of `_NOISE`."""
    with warnings.catch_warnings():
        for message in _NOISE:
            warnings.filterwarnings("ignore", message=message)
        yield


def read(
    state: dict[str, Any],
    directory: Path,
    groups: CheckpointGroups,
    *,
    config: CheckpointConfig,
    reads: VerifiedReads,
) -> dict[str, Any]:
    """Read the state that a sharded state dict requests. Collective over all ranks."""
    shared = config.fully_parallel_load in (None, True)
    strategy = LoadStrategy(
        reads,
        groups.sharing(config.ckpt_fully_parallel_load_process_group) if shared else None,
        exchange_algo=config.ckpt_fully_parallel_load_exchange_algo,
        stream_ckpt_dequant=config.stream_ckpt_dequant,
        validate=config.ckpt_load_validate_sharding_integrity,
    )
    optimizers = _request_parts(state)
    lists = {number: part.pop(_MAIN_PARAMS) for number, part in optimizers.items() if _MAIN_PARAMS in part}
    # Megatron keeps empty lists among what rank 0 stores for all ranks, and merges lists of tensors with them by their
    # positions. Requested by numbers, they come back as they are.
    numbered = {
        str(number): {f"{group}.{n}": each for group, part in enumerate(parts) for n, each in enumerate(part)}
        for number, parts in lists.items()
    }
    with quiet(), weights_only(directory, classes=_SAFE):
        loaded: dict[str, Any] = dist_checkpointing.load(
            {**state, _MAIN_PARAMS: numbered} if lists else state,
            str(directory),
            strategy,
            validate_access_integrity=False,  # each rank would receive the pieces of all; LoadStrategy does it
            strict=config.dist_ckpt_strictness,
        )
    numbered = loaded.pop(_MAIN_PARAMS, {})
    for number, parts in lists.items():
        tensors = numbered.get(str(number), {})
        part = loaded["optimizer"] if number is None else loaded["optimizer"].setdefault(number, {})
        part[_MAIN_PARAMS] = [
            [tensors[f"{group}.{n}"] for n in range(len(each))] for group, each in enumerate(parts)
        ]
    return loaded


def _request_parts(state: Mapping[str, Any]) -> dict[int | None, dict[str, Any]]:
    """Return the request of each chained optimizer by its number, or that of the only one under None."""
    section = state.get("optimizer", {})
    chained: dict[int | None, dict[str, Any]] = {
        number: part for number, part in section.items() if isinstance(number, int)
    }
    return chained or {None: section}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContents:
    """Contents of a checkpoint folder, read without its tensors."""

    common: Mapping[str, Any]
    """State that is identical on all ranks."""
    shapes: Mapping[str, tuple[int, ...]] | None
    """Global shape of each stored tensor; None if unknown."""
    objects: frozenset[str]
    """Unique keys of the stored objects."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Type of each stored tensor; empty if unknown."""
    tensors: frozenset[str] | None = None
    """Keys of the stored tensors, where their shapes are unknown; None if these are unknown, too."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Layout of the content."""
        return dict(self.common.get("content_metadata") or {})

    @property
    def layout(self) -> Mapping[str, int] | None:
        """Parallel sizes of the run that wrote it; None if not recorded."""
        layout: Mapping[str, int] | None = self.common.get("parallel_layout")
        return layout or layout_of(self.common)

    @property
    def has_optimizer(self) -> bool:
        """Whether the checkpoint holds an optimizer state."""
        keys = self._tensor_keys
        return keys is None or any(_OPTIMIZER.match(key) for key in (*keys, *self.objects))

    @property
    def has_optimizer_states(self) -> bool:
        """Whether the checkpoint holds optimizer state that the first update creates, such as momenta."""
        keys = self._tensor_keys
        return keys is None or any(_CREATED_BY_FIRST_UPDATE.match(key) for key in keys)

    @property
    def _tensor_keys(self) -> Collection[str] | None:
        return self.tensors if self.shapes is None else self.shapes.keys()

    @property
    def model_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights only."""
        return {key: shape for key, shape in (self.shapes or {}).items() if not _OPTIMIZER.match(key)}


def read_contents(directory: Path) -> CheckpointContents:
    """Read the contents of a checkpoint. Not collective.

    torch reads the index: Megatron's `load_sharded_metadata` passes each stored tensor property to `torch.empty`, which
    does not accept `strides`, a property since torch 2.15.
    """
    verify_checkpoint(str(directory))
    index = read_index(directory)
    with quiet(), weights_only(directory, classes=_SAFE):
        common = load_common_state_dict(str(directory))
    return CheckpointContents(common=common, shapes=index.shapes, objects=index.objects, dtypes=index.dtypes)


def shapes_of(sections: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the global shape of each tensor that sharded weights of this rank request."""
    shapes: dict[str, tuple[int, ...]] = {}
    for entry in nested_values(dict(sections)):
        for part in _parts(entry):
            if isinstance(part, ShardedTensor):
                shapes[part.key] = tuple(part.global_shape)
    return shapes


def padded_tensors(sections: Mapping[str, Any]) -> set[str]:
    """Return the keys of the tensors whose stored vocabulary may be padded to another size."""
    return {
        part.key
        for entry in nested_values(dict(sections))
        for part in _parts(entry)
        if isinstance(part, ShardedTensor) and part.allow_shape_mismatch
    }


def entries_in_checkpoint(sections: Mapping[str, Any], contents: CheckpointContents) -> dict[str, Any]:
    """Return the sharded weights without the entries that a checkpoint lacks; all of them if that is unknown."""
    if contents.shapes is None:
        return {section: dict(entries) for section, entries in sections.items()}
    names_stored = contents.objects | contents.shapes.keys()

    def stored(entry: Any) -> bool:
        names = [
            part.unique_key if isinstance(part, ShardedObject) else part.key
            for part in _parts(entry)
            if isinstance(part, (ShardedObject, ShardedTensor))
        ]
        return names_stored.issuperset(names)

    return {
        section: {name: entry for name, entry in entries.items() if stored(entry)}
        for section, entries in sections.items()
    }


def _parts(entry: Any) -> list[Any]:
    """Return the sharded parts of an entry of a sharded state dict."""
    built = entry.build() if isinstance(entry, ShardedTensorFactory) else entry
    return list(nested_values(built)) if isinstance(built, (dict, list)) else [built]


class MegatronRng:
    """Megatron's RNG tracker, with states that can be stored: CPU tensors in either of its modes."""

    def get_states(self) -> dict[str, torch.Tensor]:
        """Return the state of each name."""
        states = get_cuda_rng_tracker().get_states()
        return {name: convert_cuda_rng_state(state, to_graphable=False) for name, state in states.items()}

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Replace all states."""
        tracker = get_cuda_rng_tracker()
        # Megatron's tracker in its graph-safe mode, and Transformer Engine's tracker always.
        graphable = is_graph_safe_cuda_rng_tracker(tracker)
        tracker.set_states(
            {name: convert_cuda_rng_state(state, to_graphable=graphable) for name, state in states.items()}
        )


def rng_object(states: object, groups: CheckpointGroups, *, per_replica: bool = False) -> ShardedObject:
    """Return the sharded object of random states: one per (pp, tp), as Megatron-LM stores them.

    With `states=None` it requests the stored ones. Up to version 0.1, and with expert parallelism in Megatron-Bridge,
    replicas that differ are stored as one object per (pp, tp, dp x cp) rank, which `per_replica` requests.
    """
    if per_replica:
        return per_rank_object(RNG_KEY, states, groups)
    shape, offset = (groups.pp.size(), groups.tp.size()), (groups.pp.rank(), groups.tp.rank())
    return ShardedObject(RNG_KEY, states, shape, offset, replica_id=groups.dp_cp.rank())


def rng_of_rank(stored: Any, groups: CheckpointGroups) -> Mapping[str, Any] | None:
    """Return the random state of this rank among those of `rng_object`; None for another number of replicas.

    Megatron-LM stores a list of one state that all replicas share, or of one per data-parallel rank.
    """
    if not isinstance(stored, list):
        return dict(stored)
    positions = {1: 0, groups.dp_size: groups.dp_rank, groups.dp_cp.size(): groups.dp_cp.rank()}
    position = positions.get(len(stored))
    return None if position is None else dict(stored[position])


def per_rank_object(key: str, value: object, groups: CheckpointGroups) -> ShardedObject:
    """Return a sharded object with one value per (pp, tp, dp x cp) rank. With None it requests the stored value."""
    axes = (groups.pp, groups.tp, groups.dp_cp)
    shape, offset = tuple(axis.size() for axis in axes), tuple(axis.rank() for axis in axes)
    return ShardedObject(key, value, shape, offset, replica_id=0)
