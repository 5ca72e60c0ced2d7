"""Main parameters of which FusedAdam keeps only the low half, next to weights in bfloat16 (`store_param_remainders`).

The high half of such a float32 is the weight, which is rounded up where the low half, read as a signed integer, is
negative. Megatron Core stores the low half as it is in `dp_reshardable`, whose reader must therefore keep low halves
too; in `fully_reshardable` it stores the integers as if they were the parameters, which nothing can read. Here each
form is read by optimizers with and without remainders, and `fully_reshardable` has complete parameters.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer

PARAM = "param"
_LOW = 0xFFFF


def with_remainder(weight: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
    """Return the main parameter, float32, of a weight in bfloat16 and its remainder, int16."""
    low = remainder.to(torch.int32)
    high = weight.contiguous().view(torch.int16).to(torch.int32) - (low < 0).to(torch.int32)
    return ((high << 16) | (low & _LOW)).view(torch.float32)


def without_remainder(main_param: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight in bfloat16 and the remainder of a main parameter; the inverse of `with_remainder`."""
    bits = main_param.to(torch.float32).contiguous().view(torch.int32)
    low = (bits << 16) >> 16
    high = (bits >> 16) + (low < 0).to(torch.int32)
    return high.to(torch.int16).view(torch.bfloat16), low.to(torch.int16)


def request_stored_types(requested: Any, stored: Mapping[str, torch.dtype]) -> Any:
    """Return a request for remainders where remainders are stored, and for main parameters elsewhere."""
    if isinstance(requested, Mapping):
        return {key: request_stored_types(value, stored) for key, value in requested.items()}
    if isinstance(requested, list):
        return [request_stored_types(value, stored) for value in requested]
    if not isinstance(requested, ShardedTensor) or not requested.key.endswith(f".{PARAM}"):
        return requested
    stored_dtype = stored.get(requested.key, requested.dtype)
    if (stored_dtype == torch.int16) == (requested.dtype == torch.int16):
        return requested
    dtype = torch.int16 if stored_dtype == torch.int16 else torch.float32
    return replace(requested, data=torch.empty_like(requested.data, dtype=dtype), dtype=dtype)


@contextmanager
def complete_main_params(parts: list[Any]) -> Iterator[None]:
    """Let distributed optimizers return float32 main parameters, where they keep remainders."""
    with ExitStack() as stack:
        for part in parts:
            if _keeps_remainders(part):
                stack.enter_context(_replaced(part, "_get_main_param_and_optimizer_states", _complete(part)))
        yield


@contextmanager
def either_main_params(parts: list[Any], weights: Mapping[torch.Tensor, torch.Tensor]) -> Iterator[None]:
    """Let distributed optimizers take main parameters, remainders, or the values of weights, whatever they keep."""
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(
                _replaced(part, "_set_main_param_and_optimizer_states", _fitted(part, weights))
            )
        yield


def _complete(part: Any) -> Any:
    get = part._get_main_param_and_optimizer_states

    def states(model_param: torch.Tensor) -> dict[str, Any]:
        tensors: dict[str, Any] = get(model_param)
        if tensors[PARAM].dtype == torch.int16:
            tensors[PARAM] = with_remainder(_shard(part, model_param), tensors[PARAM])
        return tensors

    return states


def _fitted(part: Any, weights: Mapping[torch.Tensor, torch.Tensor]) -> Any:
    put, keeps = part._set_main_param_and_optimizer_states, _keeps_remainders(part)
    hybrid = isinstance(part.optimizer, HybridDeviceOptimizer)

    def take(model_param: torch.Tensor, tensors: Mapping[str, Any]) -> None:
        if hybrid:  # `dp_reshardable` passes the count that preceded the load, and Megatron would restore it
            tensors = {name: tensor for name, tensor in tensors.items() if name != "step"}
        if PARAM not in tensors:  # not stored apart from the weight, which is loaded before
            value = weights.get(model_param, model_param)
            tensors = {**tensors, PARAM: _shard(part, model_param, value).float()}
        stored = tensors[PARAM]
        if stored.dtype == torch.int16 and not (keeps and model_param.dtype == torch.bfloat16):
            shard = _shard(part, model_param).to(stored.device)
            tensors = {**tensors, PARAM: with_remainder(shard, stored)}
        elif stored.dtype != torch.int16 and keeps and model_param.dtype == torch.bfloat16:
            weight, remainder = without_remainder(stored)
            _shard(part, model_param).copy_(weight)
            tensors = {**tensors, PARAM: remainder}
        put(model_param, tensors)

    return take


def _keeps_remainders(part: Any) -> bool:
    """Return whether the optimizer inside Megatron's keeps remainders; an attribute of Transformer Engine's only."""
    return bool(getattr(part.optimizer, "store_param_remainders", False))


def _shard(part: Any, model_param: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
    """Return the elements of a parameter, or of a value for it, that belong to this rank."""
    local_range = part._get_model_param_range_map(model_param)["param"]
    tensor = model_param if value is None else value
    return tensor.detach().view(-1)[local_range.start : local_range.end]


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)  # that of the class is visible again
