"""States that another kind of Megatron's optimizers has stored: the distributed, the half-precision or the float32 one.

Each stores the state of a parameter under the name of its weight (`optimizer.state.exp_avg.<weight>`), except for the
form `dp_reshardable` of the distributed one. They differ in the name of main parameters, which float32 does not have,
and in where the parameter groups and the number of steps are.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedTensorFactory
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer

from mb_checkpoint.megatron.chained_optimizer import parts_of
from mb_checkpoint.megatron.optimizer import SHARDING_KEY, optimizer_parts
from mb_checkpoint.megatron.param_remainders import PARAM
from mb_checkpoint.megatron.step_counts import stored_steps
from mb_checkpoint.megatron.torch_optimizer import COMMON_STEP

Kind = Literal["distributed", "half-precision", "float32"]
_KINDS: Mapping[type, Kind] = {
    DistributedOptimizer: "distributed",
    Float16OptimizerWithFloat16Params: "half-precision",
    FP32Optimizer: "float32",
}
_DISTRIBUTED = ("dp_reshardable", "fully_reshardable")
_PREFIX = "optimizer.state."
_MAIN_PARAMS = (PARAM, "fp32_param")
"""Names of main parameters: those of the distributed and of the half-precision optimizer."""


def kind_of(optimizer: Any) -> Kind | None:
    """Return the kind of the optimizers of a run; None if they are not all of one, or of none of the three."""
    kinds = {_KINDS.get(type(part)) for part in optimizer_parts(optimizer)}
    return kinds.pop() if len(kinds) == 1 else None


def stored_kind(common: Mapping[str, Any]) -> Kind | None:
    """Return the kind of the optimizers that stored a checkpoint, by the part of it that all ranks share."""
    metadata, section = common.get("content_metadata") or {}, common.get("optimizer")
    if SHARDING_KEY in metadata:
        return "distributed" if metadata[SHARDING_KEY] in _DISTRIBUTED else None
    parts = parts_of(section) if isinstance(section, Mapping) else []
    return ("half-precision" if "optimizer" in parts[0] else "float32") if parts else None


def stores_main_params(stored: Iterable[str]) -> bool:
    """Return whether main parameters are among the keys of stored tensors."""
    return any(key.startswith(tuple(f"{_PREFIX}{name}." for name in _MAIN_PARAMS)) for key in stored)


def request_stored_main_params(requested: Any, stored: Iterable[str]) -> Any:
    """Return a request for main parameters by their stored names, without those that are not stored.

    A main parameter that is not stored is the weight itself.

    Args:
        requested: Sharded state of the optimizers of this run, in its form `fully_reshardable`.
        stored: Keys of the stored tensors.
    """
    keys = sorted(stored)

    def renamed(entry: Any) -> Any:
        if isinstance(entry, Mapping):
            values = {key: renamed(value) for key, value in entry.items()}
            return {key: value for key, value in values.items() if value is not None or entry[key] is None}
        if isinstance(entry, list):
            return [in_place(item) for item in entry]
        if not isinstance(entry, (ShardedTensor, ShardedTensorFactory)):
            return entry
        name, _, weight = entry.key.removeprefix(_PREFIX).partition(".")
        if name not in _MAIN_PARAMS:
            return entry
        names = [f"{_PREFIX}{each}.{weight}" for each in _MAIN_PARAMS]
        return next((replace(entry, key=key) for key in names if _is_stored(key, keys)), None)

    def in_place(entry: Any) -> Any:  # Megatron assigns the main parameters of a list by position
        item = renamed(entry)
        return LocalNonpersistentObject(entry.data) if item is None and entry is not None else item

    return renamed(requested)


def weights_of_main_params(
    sections: Mapping[str, Mapping[str, Any]], stored: Iterable[str]
) -> dict[str, Any]:
    """Return sharded weights whose values in float32 are read from stored main parameters, which are exact."""
    keys = sorted(stored)

    def exact(entry: Any) -> Any:
        if not isinstance(entry, (ShardedTensor, ShardedTensorFactory)) or entry.data.dtype != torch.float32:
            return entry
        names = [f"{_PREFIX}{name}.{entry.key}" for name in _MAIN_PARAMS]
        return next((replace(entry, key=key) for key in names if _is_stored(key, keys)), entry)

    return {name: {key: exact(entry) for key, entry in part.items()} for name, part in sections.items()}


def _is_stored(key: str, keys: Sequence[str]) -> bool:
    """Return whether a tensor, or the parts of it that a factory stores, are among sorted keys."""
    position, of_parts = bisect_left(keys, key), bisect_left(keys, f"{key}.")
    return keys[position : position + 1] == [key] or any(
        name.startswith(f"{key}.") for name in keys[of_parts : of_parts + 1]
    )


def in_form_of(optimizer: Any, loaded: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a loaded section with the groups and the number of steps where the optimizers of this run have them."""
    kind = kind_of(optimizer)
    parts = {
        number: in_form_of(optimizer, entry) for number, entry in loaded.items() if isinstance(number, int)
    }
    part = {key: entry for key, entry in loaded.items() if not isinstance(key, int)}
    part.pop("param_state_sharding_type", None)
    of_torch = {key: part.pop(key) for key in ("state", "param_groups") if key in part}
    inner = _merged(part.pop("optimizer", {}), of_torch)
    if kind == "distributed":
        if "param_state" in part:
            part["param_state_sharding_type"] = "fully_reshardable"
        steps = stored_steps({"param_groups": [], **inner})
        inner.pop("state", None)
        inner |= {} if steps is None else {COMMON_STEP: steps}
    if inner:
        part |= inner if kind == "float32" else {"optimizer": inner}
    return part | parts


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the union of two parts of a state of torch: settings as stored, and what was requested."""
    merged = {**first, **second}
    if "state" in first and "state" in second:
        merged["state"] = {**first["state"], **second["state"]}
    if "param_groups" in first and "param_groups" in second:
        lists = [first["param_groups"], second["param_groups"]]
        # A request has the numbers of the parameters alone.
        numbers, settings = sorted(lists, key=lambda groups: max(map(len, groups), default=0))
        same = len(numbers) == len(settings)
        merged["param_groups"] = (
            [{**own, **group} for own, group in zip(numbers, settings, strict=True)] if same else settings
        )
    return merged
