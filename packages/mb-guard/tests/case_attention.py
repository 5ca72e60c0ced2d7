"""Functions that run on ranks of `test_attention.py`."""

from contextlib import nullcontext

import torch
from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.utils import attention_mask_func
from tiny_gpt import LENGTH, batch, gpt, gradients, start

import mb_guard

LATENT = {
    "multi_latent_attention": True,
    "qk_layernorm": True,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 8,
    "rope_type": "rope",
}


def window(fault: str | None) -> float:
    """Return how far attention with a window and a mask is from a softmax over the places that both allow."""
    scores = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    place = torch.arange(8)
    hidden = (place > 1) & (place < 4)
    mask = (hidden[None, :] | (place[None, :] > place[:, None]))[None, None] & ~torch.eye(8).bool()
    with mb_guard.without(fault) if fault else nullcontext():
        softmax = FusedScaleMaskSoftmax(
            False, False, AttnMaskType.causal, False, attention_mask_func, True, None, window_size=(3, 0)
        )
        found = softmax.forward_torch_softmax(scores.clone(), mask)
    distance = place[:, None] - place[None, :]
    allowed = ~mask & (distance >= 0) & (distance <= 3)
    return float((found - scores.masked_fill(~allowed, -10000.0).softmax(-1)).abs().max())


def latent_norms(fault: str | None) -> list[float]:
    """Return the gradients of both norms of latent attention on two tensor-parallel ranks, relative to one rank."""
    whole = batch(torch.ones(1, LENGTH))
    start()
    name = "decoder.layers.0.self_attention.{}_layernorm.weight"
    names = [name.format(part) for part in ("q", "kv")]
    model = gpt(**LATENT)
    state = {key: value for key, value in model.state_dict().items() if value is not None}
    right = gradients(model, [whole])
    with mb_guard.without(fault) if fault else nullcontext():
        start(tensor_model_parallel_size=2)
        split = gpt(**LATENT, tensor_model_parallel_size=2)
        rank = torch.distributed.get_rank()
        with torch.no_grad():
            for key, value in split.named_parameters():
                value.copy_(part_of(state[key], value, rank))
        found = gradients(split, [whole])
    return [float((found[each] * right[each]).sum() / right[each].square().sum()) for each in names]


def sinks(fault: str | None) -> list[float]:
    """Return the norm of the gradient of the sinks as Megatron sums it, on two ranks and on one."""
    whole = batch(torch.ones(1, LENGTH))
    norms = []
    state: dict[str, torch.Tensor] = {}
    for size in (1, 2):
        start(tensor_model_parallel_size=size)
        with mb_guard.without(fault) if fault else nullcontext():
            model = gpt(softmax_type="learnable", tensor_model_parallel_size=size)
        state = state or {name: value.detach().clone() for name, value in model.named_parameters()}
        rank = torch.distributed.get_rank()
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(part_of(state[name], value, rank))
        found = gradients(model, [whole])
        parameters = [(name, each) for name, each in model.named_parameters() if "softmax_offset" in name]
        counted = [found[name] for name, each in parameters if param_is_not_tensor_parallel_duplicate(each)]
        total = torch.stack([torch.zeros(()), *(each.square().sum() for each in counted)]).sum()
        if size > 1:
            torch.distributed.all_reduce(total)
        norms.append(float(total.sqrt()))
    return norms


def part_of(whole: torch.Tensor, like: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the part of a weight of one rank on one of two tensor-parallel ranks."""
    for dim, (size, own) in enumerate(zip(whole.shape, like.shape, strict=True)):
        if size != own:
            return whole.chunk(2, dim)[rank]
    return whole
