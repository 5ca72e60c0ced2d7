"""Wrappers for fully sharded data parallelism: Megatron-FSDP, and torch's FSDP2."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallelConfig, TorchFullyShardedDataParallel
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer.optimizer import (
    ChainedOptimizer,
    Float16OptimizerWithFloat16Params,
    MegatronOptimizer,
)
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.utils import get_model_config
from torch.distributed.tensor import DTensor

from mb_models.peft.config import PEFT
from mb_models.rules import fsdp as fsdp_rules
from mb_models.rules import violated_rules
from mb_models.rules.fsdp import FsdpError
from mb_models.training.wrap import resolve_ddp_config, wrap_half_precision

MAIN_PARAMS = "fp32_from_fp16_params"
"""Entry of the state of Megatron's mixed-precision optimizer with float32 copies of the weights."""


class TorchFsdp2(TorchFullyShardedDataParallel):  # type: ignore[misc]
    """Megatron's wrapper of torch's FSDP2 that also scales gradients, which a loss per token requires."""

    def scale_gradients(self, scaling_factor: float | torch.Tensor) -> None:
        """Multiply all gradients in place by the factor times the number of ranks.

        FSDP2 averages gradients over the ranks, and the factor is meant for their sum.
        """
        factor = scaling_factor * self.process_group.size()
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad.to_local().mul_(factor)


def wrap_megatron_fsdp(
    chunks: Sequence[torch.nn.Module],
    ddp_config: DistributedDataParallelConfig,
    *,
    pg_collection: ProcessGroupCollection | None = None,
    disable_bucketing: bool = False,
    broadcast_parameters: bool = False,
) -> list[FullyShardedDataParallel]:
    """Wrap a rank's chunks in half precision and in Megatron-FSDP, in order.

    `ddp_config.data_parallel_sharding_strategy` selects the sharded tensors; `ddp_config` is not modified. The
    optimizer is Megatron's distributed optimizer. If gradients are reduced during backward, `no_sync_func` of the
    model's configuration is set unless it is already: without it Megatron-FSDP does not know the last microbatch, and
    with the strategies no_shard and optim each rank would silently train on its own gradients.

    All ranks call it, after the weights are loaded or initialised. With `broadcast_parameters` it is collective over
    the data-parallel groups, and copies the weights of the first replica to the others.

    Raises:
        FsdpError: a rule of `mb_models.rules.fsdp` on Megatron-FSDP is violated, or the distributed optimizer is off.
    """
    groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
    config = get_model_config(chunks[0])
    _reject_violations(
        dict.fromkeys(fsdp_rules.MEGATRON, True) | {"model.pipeline_model_parallel_size": groups.pp.size()}
    )
    if not ddp_config.use_distributed_optimizer:
        raise FsdpError(
            "wrap_megatron_fsdp: ddp_config.use_distributed_optimizer=False, because only Megatron's distributed "
            "optimizer works on Megatron-FSDP's shards. Set it to True, and the optimizer's setting of that name, too."
        )
    wrapped = []
    for number, chunk in enumerate(wrap_half_precision(chunks)):
        resolved = resolve_ddp_config(ddp_config, chunks=chunks, groups=groups)
        resolved.use_megatron_fsdp = True
        wrapped.append(
            FullyShardedDataParallel(
                config=config,
                ddp_config=resolved,
                module=chunk,
                disable_bucketing=disable_bucketing or number > 0,
                pg_collection=groups,
            )
        )
    if wrapped[0].ddp_config.overlap_grad_reduce and config.no_sync_func is None:
        config.no_sync_func = wrapped[0].no_sync
    if broadcast_parameters:
        for chunk in wrapped:
            chunk.broadcast_params()
    return wrapped


def wrap_torch_fsdp2(
    chunks: Sequence[torch.nn.Module],
    ddp_config: DistributedDataParallelConfig,
    *,
    pg_collection: ProcessGroupCollection | None = None,
) -> list[TorchFsdp2]:
    """Wrap a rank's chunks in half precision and in torch's FSDP2, in order.

    Every weight is sharded over the ranks of the data- and context-parallel group, layer by layer; `ddp_config` is only
    stored for Megatron to read. Use a plain optimizer, not the distributed one. If weights differ between ranks, the
    result is one model of each rank's shard.

    All ranks call it, after the weights are loaded or initialised.

    Raises:
        FsdpError: a rule of `mb_models.rules.fsdp` on FSDP2 is violated, a chunk is not a GPT, `ddp_config` selects
            Megatron-FSDP, or a weight is not divisible by the number of ranks.
    """
    groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
    config = get_model_config(chunks[0])
    if ddp_config.use_megatron_fsdp:
        raise FsdpError(
            "wrap_torch_fsdp2: ddp_config.use_megatron_fsdp=True, because only one of the two can shard a weight. "
            "Set it to False, or call wrap_megatron_fsdp."
        )
    _reject_other_families(chunks)
    _reject_violations(
        {
            fsdp_rules.TORCH: True,
            "model.num_moe_experts": config.num_moe_experts,
            "model.expert_model_parallel_size": groups.ep.size(),
            "model.share_embeddings_and_output_weights": any(
                chunk.share_embeddings_and_output_weights for chunk in chunks
            ),
            "model.fp16": config.fp16,
            "model.gradient_accumulation_fusion": config.gradient_accumulation_fusion,
            "ddp.use_distributed_optimizer": ddp_config.use_distributed_optimizer,
            "peft": _has_adapters(chunks),
            "optimizer.use_distributed_optimizer": None,
        }
    )
    _reject_uneven(chunks, ranks=groups.dp_cp.size())
    wrapped = [
        TorchFsdp2(config=config, ddp_config=copy.copy(ddp_config), module=chunk, process_group=groups.dp_cp)
        for chunk in wrap_half_precision(chunks)
    ]
    for chunk in chunks:
        chunk.register_load_state_dict_pre_hook(_shard_weights)  # type: ignore[no-untyped-call]
    return wrapped


def register_shard_load_hooks(optimizer: MegatronOptimizer) -> None:
    """Let Megatron's optimizer over FSDP2 load its own checkpoints, which hold plain tensors instead of DTensors.

    Call it once, after the optimizer is built.
    """
    parts = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]
    for part in parts:
        part.optimizer.register_load_state_dict_pre_hook(_shard_optimizer_state)
        if isinstance(part, Float16OptimizerWithFloat16Params):
            part.load_state_dict = functools.partial(_load_with_main_params, part, part.load_state_dict)


def _load_with_main_params(
    part: Float16OptimizerWithFloat16Params,
    load: Callable[[dict[str, Any]], None],
    state_dict: dict[str, Any],
) -> None:
    """Load a state dict whose float32 copies of the weights are shards."""
    masters = [
        [to_shard(value, like=copied) for value, copied in zip(values, copies, strict=True)]
        for values, copies in zip(state_dict[MAIN_PARAMS], part.fp32_from_float16_groups, strict=True)
    ]
    load({**state_dict, MAIN_PARAMS: masters})


def _shard_optimizer_state(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the state dict for torch's optimizer with its tensors as shards of the parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    state = dict(state_dict["state"])
    for number, parameter in zip(numbers, parameters, strict=True):
        entries = state.get(number, {})
        state[number] = {name: to_shard(value, like=parameter) for name, value in entries.items()}
    return {**state_dict, "state": state}


def _shard_weights(module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, *_load: object) -> None:
    """Convert the plain tensors that a module is about to load to shards."""
    for name, parameter in module.named_parameters():
        if prefix + name in state_dict:
            state_dict[prefix + name] = to_shard(state_dict[prefix + name], like=parameter)


def to_shard(value: Any, *, like: torch.Tensor) -> Any:
    """Return this rank's tensor as a DTensor with the placement of `like`; return any other value unchanged."""
    if not isinstance(like, DTensor) or not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
        return value
    if value.shape != like.to_local().shape:
        return value
    return DTensor.from_local(
        value, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _reject_other_families(chunks: Sequence[torch.nn.Module]) -> None:
    for chunk in chunks:
        if not isinstance(chunk, GPTModel):
            raise FsdpError(
                f"wrap_torch_fsdp2: {type(chunk).__name__} is not a GPT, because checkpoints of hybrid models hold no "
                "shards, and other families are untested. Use wrap_ddp."
            )


def _has_adapters(chunks: Sequence[torch.nn.Module]) -> bool:
    return any(PEFT().is_adapter(name) for chunk in chunks for name, _ in chunk.named_parameters())


def _reject_uneven(chunks: Sequence[torch.nn.Module], *, ranks: int) -> None:
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if parameter.shape[0] % ranks:
                raise FsdpError(
                    f"wrap_torch_fsdp2: {name} has {parameter.shape[0]} rows for {ranks} ranks, because Megatron "
                    "Core's checkpoints hold equal shards only. Use a number of data- and context-parallel ranks that "
                    "divides it, or plain data parallelism."
                )


def _reject_violations(values: Mapping[str, object]) -> None:
    problems = violated_rules(fsdp_rules.RULES, values)
    if problems:
        raise FsdpError("\n".join(problem.line for problem in problems))
