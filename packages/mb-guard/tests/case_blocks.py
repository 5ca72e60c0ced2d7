"""Functions that run on ranks of `test_blocks.py`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.transformer.transformer_config import TransformerConfig
from tiny_gpt import EXPERTS, LENGTH, batch, gpt, gradients, masked_sum, relative, start

import mb_guard
from mb_host.megatron.hybrid import host_hybrid_spec

TENSOR_PARALLEL = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "hidden_dropout": 0.5}


def forward_step(
    iterator: Iterator[Mapping[str, torch.Tensor]], model: Any, return_schedule_plan: bool = False
) -> tuple[Any, Any]:
    """Run a microbatch, or return the plan of one."""
    part = next(iterator)
    call = model.build_schedule_plan if return_schedule_plan else model
    masks = {name: part[name] for name in ("labels", "loss_mask")}
    output = call(part["tokens"], part["position_ids"], None, **masks)
    return output, partial(masked_sum, part["loss_mask"])


def model_with_experts(**settings: Any) -> Any:
    """Build a small model whose experts are on two ranks."""
    return gpt(**EXPERTS, expert_model_parallel_size=2, bf16=True, **settings)


def step(model: Any) -> dict[str, torch.Tensor]:
    """Return the gradients of two microbatches."""
    return gradients(model, [batch(torch.ones(1, LENGTH))] * 2, forward_step)


def overlapped(fault: str | None) -> float:
    """Return how far the gradient of the overlapped schedule is from that of the other, behind a dense layer."""
    start(expert_model_parallel_size=2)
    with mb_guard.without(fault) if fault else nullcontext():
        found, right = (
            step(model_with_experts(moe_layer_freq=[1, 0], overlap_moe_expert_parallel_comm=overlap))
            for overlap in (True, False)
        )
    return relative(found, right)


def overlapped_masks(fault: str | None) -> list[bool]:
    """Return the dropout masks that this tensor-parallel rank draws in the layers of a plan."""
    start(tensor_model_parallel_size=2, expert_model_parallel_size=2, expert_tensor_parallel_size=1)
    settings = {**TENSOR_PARALLEL, "expert_tensor_parallel_size": 1, "overlap_moe_expert_parallel_comm": True}
    model = model_with_experts(**settings)
    with mb_guard.without(fault) if fault else nullcontext():
        return masks_of(model, lambda: step(model))


def hybrid_masks(fault: str | None) -> list[bool]:
    """Return those of a hybrid."""
    start(tensor_model_parallel_size=2)
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, attention_dropout=0.0, **TENSOR_PARALLEL
    )
    model = HybridModel(
        config=config,
        hybrid_stack_spec=host_hybrid_spec(config),
        vocab_size=64,
        max_sequence_length=LENGTH,
        hybrid_layer_pattern="*-",
        position_embedding_type="rope",
    )
    part = batch(torch.ones(1, LENGTH))
    with mb_guard.without(fault) if fault else nullcontext():
        return masks_of(model, lambda: model(part["tokens"], part["position_ids"], None))


def masks_of(model: Any, run: Callable[[], object]) -> list[bool]:
    """Return which values the layers of a model keep in a run."""
    masks: list[torch.Tensor] = []
    drop = torch.nn.functional.dropout

    def dropout(values: torch.Tensor, p: float, training: bool, inplace: bool) -> torch.Tensor:
        mask = drop(torch.ones_like(values), p, training, inplace)
        if p:
            masks.append(mask > 0)
        return values * mask

    model.embedding.embedding_dropout.p = 0.0  # Megatron forks for it
    with mock.patch.object(torch.nn.functional, "dropout", dropout):
        run()
    return torch.cat([mask.flatten() for mask in masks]).tolist()
