"""Faults of multi-latent attention."""

import functools
from typing import Any

from mb_guard.fault import Fault, Function, Patch


def reduce_rotary_key_gradient(qkv_down_projection: Function) -> Function:
    """Sum the gradient of the rotary part of latent attention's keys over the heads of all ranks.

    If the projection is split over tensor-parallel ranks, as without Transformer Engine, the gradient of that part
    would come from the local heads only.
    """
    import torch

    known = qkv_down_projection.__globals__

    def summed(gradient: torch.Tensor, group: Any) -> torch.Tensor:
        total = gradient.clone()
        torch.distributed.all_reduce(total, group=group)
        return total

    @functools.wraps(qkv_down_projection)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        queries, keys = qkv_down_projection(self, *args, **kwargs)
        sizes = [self.config.kv_lora_rank, self.config.qk_pos_emb_head_dim]
        if keys.size(-1) == sum(sizes):
            return queries, keys
        whole = known["gather_from_tensor_model_parallel_region"](keys, group=self.tp_group)
        if self.config.sequence_parallel:
            # Equivalent to an unsplit projection on every rank: the caller gathers the rotary part and sums gradients.
            return queries, known["scatter_to_sequence_parallel_region"](whole, group=self.tp_group)
        latent, rotated = torch.split(whole, sizes, dim=-1)
        rotated = rotated.clone()
        if rotated.requires_grad:
            rotated.register_hook(functools.partial(summed, group=self.tp_group))  # type: ignore[no-untyped-call]
        return queries, torch.cat([latent, rotated], dim=-1)

    return patched


FAULTS = (
    Fault(
        id="rotary-key-gradient",
        effect="wrong number",
        summary="Latent attention whose down projection is split over tensor-parallel ranks computes the gradient of "
        "the shared rotary key from the heads of one rank.",
        shows="Silent: the gradient of linear_kv_down_proj is wrong by 22 % at a tensor-parallel size of 2 without "
        "Transformer Engine.",
        action="put right",
        test="packages/mb-guard/tests/test_latent_attention.py::test_rotary_keys_get_gradients_from_the_heads_of_all_ranks",
        report="https://github.com/NVIDIA/Megatron-LM/issues/6839",
        met=lambda settings: (
            bool(settings.multi_latent_attention)
            and (settings.tensor_model_parallel_size or 1) > 1
            and settings.transformer_impl == "local"
        ),
        patches=(
            Patch(
                wrap=reduce_rotary_key_gradient,
                module="megatron.core.transformer.multi_latent_attention",
                target="MLASelfAttention._qkv_down_projection",
                sources=("39fbfd38d919efad",),
            ),
        ),
    ),
    Fault(
        id="latent-softmax-scale-ignored",
        effect="wrong number",
        summary="Multi-latent attention ignores softmax_scale and divides by the square root of the size of a head.",
        shows="Silent.",
        action="refuse",
        test="packages/mb-guard/tests/test_latent_attention.py::test_a_softmax_scale_of_latent_attention_is_refused",
        report="https://github.com/NVIDIA/Megatron-LM/pull/3698",
        met=lambda settings: bool(settings.multi_latent_attention) and settings.softmax_scale is not None,
        advice="Set softmax_scale=None.",
    ),
)
