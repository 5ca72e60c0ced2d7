"""Access to Megatron-FSDP: positions of the local shards of a model and its optimizer in the global tensors.

Weights have the names that other trainers on Megatron Core use in this layout, with and without half precision. A fused
gate and input projection (SwiGLU) is stored as two tensors, `_w` and `_v`, and experts have their global number, so
that another parallel layout finds them.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, TorchFullyShardedDataParallel
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.distributed.fsdp.src.megatron_fsdp import MegatronFSDP
from megatron.core.transformer.fsdp_dtensor_checkpoint import handle_experts_in_state_dict
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import unwrap_model
from torch.distributed.tensor import DTensor

from mb_checkpoint.collectives import RanksFailedError, on_every_rank
from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.load.param_groups import Policy, changes_of, fit_group
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.megatron.optimizer import SHARDING_KEY, grad_scaler, optimizer_parts
from mb_checkpoint.megatron.shards import Shard, full_shard
from mb_checkpoint.state.adapters import KeyFilter

FORMAT = "fsdp_dtensor"
MODEL_PREFIX = "model.module."
STATE_PREFIX = "optimizer.state.module.module.module."
GROUP_PREFIX = "optimizer.param_to_group_meta.module.module.module."
SCALER_NAME = "optimizer.grad_scaler"
_WRAPPERS = (
    DistributedDataParallel,
    TorchFullyShardedDataParallel,
    FullyShardedDataParallel,
    MegatronFSDP,
    Float16Module,
)


def is_wrapped(model: Sequence[Any]) -> bool:
    """Return whether the chunks are wrapped by Megatron-FSDP."""
    return any(isinstance(chunk, FullyShardedDataParallel) for chunk in model)


def reject_format_mismatch(model: Sequence[Any], ckpt_format: str) -> None:
    """Reject a layout that does not fit the wrapper of the model.

    Raises:
        CheckpointLayoutError: Megatron-FSDP with a layout other than its own, or its layout without it.
    """
    wrapped = is_wrapped(model)
    if wrapped == (ckpt_format == FORMAT):
        return
    how = "is sharded by Megatron-FSDP" if wrapped else "is not sharded by Megatron-FSDP"
    right = FORMAT if wrapped else "torch_dist"
    raise CheckpointLayoutError(
        f"checkpoint.ckpt_format: {ckpt_format}, and the model {how}, because {FORMAT} is the layout of its shards and "
        f"of nothing else. Set checkpoint.ckpt_format={right}."
    )


def reject_torch_dist_checkpoint(model: Sequence[Any], path: Path) -> None:
    """Reject a checkpoint in the torch_dist layout for a model in Megatron-FSDP.

    Raises:
        CheckpointLayoutError: The model is in Megatron-FSDP.
    """
    if is_wrapped(model):
        raise CheckpointLayoutError(
            f"{path}: is in Megatron Core's layout torch_dist, and the model is sharded by Megatron-FSDP, because only "
            f"{FORMAT} can be read into its shards. Resume without Megatron-FSDP (ddp.use_megatron_fsdp=false), or "
            "load the weights into the model before it is wrapped."
        )


def weights(
    model: Sequence[Any], groups: CheckpointGroups, *, keep: KeyFilter | None = None
) -> dict[str, Shard]:
    """Return the weights and buffers of this rank by their names in a checkpoint.

    A model without Megatron-FSDP has full tensors. For a model in Megatron-FSDP, this ends the gathering of its
    weights. `keep` selects by the names in the model. Collective.

    Raises:
        CheckpointLayoutError: A model without Megatron-FSDP uses tensor or pipeline parallelism; or, on any rank, the
            shards of a model in Megatron-FSDP are not the slices that Megatron-FSDP reports.
    """
    if not is_wrapped(model):
        _reject_model_parallel(model, groups)
    inner = _unwrapped(model)
    _reject_unknown_slices(inner)
    shards: dict[str, Shard] = {}
    gated = _gated(inner)
    for name, value in _state(inner).items():
        if keep is None or keep(name):
            placed = _pieces(name, _local(value), value, gated=gated)
            shards |= {MODEL_PREFIX + piece: shard for piece, shard in placed}
    return _with_global_expert_ids(inner, shards)


def optimizer_entries(model: Sequence[Any], optimizer: Any) -> dict[str, Any]:
    """Return the optimizer state of this rank by its names in a checkpoint: shards, and settings of each parameter.

    A rank has no state for a parameter of which it holds no elements.
    """
    inner = _unwrapped(model)
    entries: dict[str, Any] = {}
    gated = _gated(inner)
    names = {id(value): name for name, value in _state(inner).items()}
    for part in optimizer_parts(optimizer):
        for group in part.optimizer.param_groups:
            settings = {key: value for key, value in group.items() if key != "params"}
            for parameter in group["params"]:
                name = names[id(parameter)]
                entries[GROUP_PREFIX + name] = settings
                for key, value in part.optimizer.state.get(parameter, {}).items():
                    for piece, shard in _of_state(name, value, parameter, gated=gated):
                        entries[f"{STATE_PREFIX}{piece}.{key}"] = shard
        if scaler := grad_scaler(part):
            entries[SCALER_NAME] = scaler.state_dict()
    return _with_global_expert_ids(inner, entries)


def make_state(model: Sequence[Any], optimizer: Any) -> list[Any]:
    """Create the state that an optimizer creates in its first step, if it has none; the weights do not change.

    Returns those of its parts that had no state.
    """
    parts = []
    _state(_unwrapped(model))  # from here on the parameters of the model are those of the optimizer
    for part in optimizer_parts(optimizer):
        if part.optimizer.state:
            continue
        rates = [group["lr"] for group in part.optimizer.param_groups]
        try:
            for group in part.optimizer.param_groups:
                group["lr"] = 0.0
            part.sharded_state_dict({}, is_loading=True, metadata={SHARDING_KEY: FORMAT})
        finally:
            for group, rate in zip(part.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        parts.append(part)
    return parts


def drop_state_not_stored(model: Sequence[Any], optimizer: Any, stored: Container[str]) -> None:
    """Remove the state of parameters for which a checkpoint has none, so that the optimizer creates it again."""
    inner = _unwrapped(model)
    gated = _gated(inner)
    names = {id(value): name for name, value in _state(inner).items()}
    for part in optimizer_parts(optimizer):
        for parameter, values in list(part.optimizer.state.items()):
            group_names = {
                f"{STATE_PREFIX}{piece}.{key}": None
                for key, value in values.items()
                for piece, _ in _of_state(names[id(parameter)], value, parameter, gated=gated)
            }
            if not any(name in stored for name in _with_global_expert_ids(inner, group_names)):
                del part.optimizer.state[parameter]


def restore_settings(
    model: Sequence[Any], optimizer: Any, loaded: Mapping[str, Any], *, policy: Policy
) -> list[str]:
    """Restore counters of the parameter groups and the loss scaler; return the settings that differ."""
    inner = _unwrapped(model)
    names = {id(value): name for name, value in _state(inner).items()}
    changed: set[str] = set()
    for part in optimizer_parts(optimizer):
        for group in part.optimizer.param_groups:
            group_names = _with_global_expert_ids(
                inner, {GROUP_PREFIX + names[id(parameter)]: None for parameter in group["params"]}
            )
            stored = next((loaded[name] for name in group_names if name in loaded), None)
            if stored is not None:
                changed |= changes_of(stored, group)
                group.update(fit_group(stored, group, policy=policy))
        scaler = grad_scaler(part)
        if scaler and SCALER_NAME in loaded:
            scaler.load_state_dict(loaded[SCALER_NAME])
    return sorted(changed)


def install_weights(model: Sequence[Any]) -> None:
    """Copy the loaded main parameters into the model's weights and start gathering them."""
    for chunk in model:
        if isinstance(chunk, FullyShardedDataParallel):
            chunk.module.install_optimized_model_weights()
            chunk.start_param_sync()


def fused_layers(model: Sequence[Any]) -> bool:
    """Return whether a layer fuses several projections, which only the same tensor-parallel size can split."""
    return any(hasattr(module, "in_proj") for module in _unwrapped(model).modules())


def _reject_model_parallel(model: Sequence[Any], groups: CheckpointGroups) -> None:
    sizes = {"tensor": groups.tp.size(), "pipeline": groups.pp.size(), "expert": groups.ep_size}
    if len(model) > 1 or any(size > 1 for size in sizes.values()):
        raise CheckpointLayoutError(
            f"checkpoint load: a checkpoint in the layout {FORMAT}, and a model without Megatron-FSDP that is spread "
            f"over ranks ({sizes}), because the weights of such a model are loaded unsharded. Use one tensor-, "
            "pipeline- and expert-parallel rank, or Megatron-FSDP."
        )


def _reject_unknown_slices(inner: Any) -> None:
    """Check every weight before any collective work, so that all ranks reject together. Collective."""
    try:
        on_every_rank(lambda: [_ShardLayout.of(value) for value in _state(inner).values()])
    except RanksFailedError as error:
        raise CheckpointLayoutError(str(error)) from error


def _unwrapped(model: Sequence[Any]) -> Any:
    """Return the model inside all wrappers; there is one chunk, since Megatron-FSDP has no pipeline stages."""
    return unwrap_model(model[0], _WRAPPERS)


def _state(inner: Any) -> dict[str, torch.Tensor]:
    """Return parameters and persistent buffers by name; under Megatron-FSDP the parameters are the optimizer's."""
    entries = inner.state_dict(keep_vars=True)
    return {
        name: value
        for name, value in entries.items()
        if isinstance(value, torch.Tensor) and not name.endswith("_extra_state")
    }


def _local(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return value.to_local() if isinstance(value, DTensor) else value


def _gated(inner: Any) -> frozenset[str]:
    """Return the names of the weights that fuse a gate and its input."""
    fused_names = set()
    for name, module in inner.named_modules():
        if hasattr(module, "linear_fc1") and module.config.gated_linear_unit:
            parameters = dict(module.linear_fc1.named_parameters(recurse=False))
            fused_names |= {f"{name}.linear_fc1.{parameter}" for parameter in parameters}
    return frozenset(fused_names)


def _of_state(
    name: str, value: Any, parameter: torch.Tensor, *, gated: frozenset[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the shards of a value that the optimizer keeps for a parameter."""
    if not isinstance(value, torch.Tensor):
        yield name, value
        return
    local = _local(value)
    if local.shape == _local(parameter).shape:
        yield from _pieces(name, local, parameter, gated=gated)
        return
    ends = ("_w", "_v") if name in gated else ("",)  # a count, such as that of the steps
    yield from ((name + end, full_shard(local)) for end in ends)


def _pieces(
    name: str, local: torch.Tensor, like: torch.Tensor, *, gated: frozenset[str]
) -> Iterator[tuple[str, Shard]]:
    """Yield this rank's shards of a tensor that is sharded like a parameter; two for a fused gate and input."""
    layout = _ShardLayout.of(like)
    if name not in gated:
        yield name, layout.block(local, layout.start)
        return
    half = replace(
        layout, own=(layout.own[0] // 2, *layout.own[1:]), shape=(layout.shape[0] // 2, *layout.shape[1:])
    )
    size, flat = torch.Size(half.own).numel(), local.reshape(-1)
    for end, first in (("_w", 0), ("_v", size)):
        low = min(max(layout.start, first), layout.start + flat.numel())
        high = max(low, min(layout.start + flat.numel(), first + size))
        part = flat[low - layout.start : high - layout.start].view(-1, *half.own[1:])
        yield name + end, half.block(part, low - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardLayout:
    """Sharding of a tensor: split along one dimension by tensor parallelism, each part into contiguous slices."""

    own: tuple[int, ...]
    """Shape of the part of this tensor-parallel rank."""
    shape: tuple[int, ...]
    """Global shape."""
    start: int
    """First element of that part in the slice of this rank."""
    rank: int
    """Tensor-parallel rank."""
    split: int | None
    """Dimension that tensor parallelism splits."""

    @classmethod
    def of(cls, like: Any) -> "_ShardLayout":
        """Derive the layout from a parameter.

        Raises:
            CheckpointLayoutError: The slice does not match the elements of this rank.
        """
        shape = tuple(like.shape)
        if not isinstance(like, DTensor):
            return cls(own=shape, shape=shape, start=0, rank=0, split=None)
        parameter: Any = like  # Megatron-FSDP gives it attributes
        local_shape = tuple(parameter.orig_param.shape)
        size = _local(parameter).numel()
        complete = size == parameter.orig_param.numel()
        run = slice(0, size) if complete else parameter.megatron_fsdp_slice
        if run.stop - run.start != size:
            raise CheckpointLayoutError(
                f"a weight of shape {shape}: this rank has {size} elements of it and Megatron-FSDP reports {run}, "
                "because its shards are divided again between groups of ranks. Set "
                "ddp.outer_dp_sharding_strategy=no_shard."
            )
        split = next(
            (dimension for dimension, size in enumerate(local_shape) if size != shape[dimension]), None
        )
        tp_dim = parameter.megatron_fsdp_dist_index.tp_dim
        return cls(
            own=local_shape,
            shape=shape,
            start=run.start,
            rank=0 if split is None else parameter.device_mesh.get_local_rank(tp_dim),
            split=split,
        )

    def block(self, local: torch.Tensor, start: int) -> Shard:
        """Return complete rows of that part, beginning at an element, as a shard."""
        offsets = [0] * len(self.own)
        if local.numel() and self.own:
            offsets[0] = start // torch.Size(self.own[1:]).numel()
        if self.split is not None:
            offsets[self.split] += self.rank * self.own[self.split]
        return Shard(data=local, offsets=tuple(offsets), shape=self.shape)


def _with_global_expert_ids(inner: Any, entries: dict[str, Any]) -> dict[str, Any]:
    """Rename experts to their global numbers."""
    experts = inner.config.num_moe_experts
    if not experts:
        return entries
    renamed: dict[str, Any] = handle_experts_in_state_dict(entries, experts)
    return renamed
