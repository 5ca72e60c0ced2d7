"""Functions that run on a rank of `test_weight_updates.py`."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.emerging_optimizers import TensorParallelMuon
from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.attention import SelfAttention
from tiny_gpt import EXPERTS, gpt, start

import mb_guard


def muon_of_a_part(mode: str) -> float:
    """Return how far Muon's update of the first half of a weight is from that half of the update of the weight.

    The exact orthogonalization (U V^T) of the gradient takes the place of the iterations that approximate it.
    """
    whole = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))

    def orthogonalize(parameter: object, part: torch.Tensor, group: object, dim: int | None) -> torch.Tensor:
        left, _, right = torch.linalg.svd(part if dim is None else whole, full_matrices=False)
        return (left @ right)[: len(part)]

    optimizer = SimpleNamespace(
        tp_mode=mode,
        split_qkv=False,
        pg_collection=None,
        scaled_orthogonalize_fn_with_gtp_remat=orthogonalize,
    )
    found = TensorParallelMuon.orthogonalize(optimizer, SimpleNamespace(partition_dim=0), whole[:4])
    right = orthogonalize(None, whole, None, None)[:4]
    return float((found - right).norm() / right.norm())


def decay_of_embedding() -> float:
    """Return the factor of the weight decay of an embedding with a standard deviation of its own."""
    start()
    model = gpt(embedding_init_method_std=1.0)
    wrapped = DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=0.1, weight_decay=0.1), [wrapped])
    weight = model.embedding.word_embeddings.weight
    [factor] = [
        group["wd_mult"]
        for group in optimizer.param_groups
        if any(each is weight or each.shape == weight.shape for each in group["params"])
    ]
    return float(factor)


def counted_layer_wise(fault: str | None, expert_ranks: int) -> tuple[int, int, int]:
    """Return the number of parameters of a model, the square of the norm of gradients of ones, and a number of zeros.

    The last two are those of an optimizer that is sharded by layers; the zeros are those of gradients of zeros.
    """
    start()
    parameters = sum(each.numel() for each in gpt(**EXPERTS, add_bias_linear=True).parameters())
    sizes = {
        "tensor_model_parallel_size": 2,
        "expert_model_parallel_size": expert_ranks,
        "expert_tensor_parallel_size": 1,
    }
    start(**sizes)
    model = gpt(**EXPERTS, **sizes, add_bias_linear=True, sequence_parallel=True).bfloat16()
    with mb_guard.without(fault) if fault else nullcontext():
        groups = [
            {
                "params": [
                    each for each in model.parameters() if getattr(each, "allreduce", True) is not expert
                ],
                "is_expert_parallel": expert,
            }
            for expert in (False, True)
        ]
        optimizer = LayerWiseDistributedOptimizer(
            [torch.optim.SGD(groups, lr=0.1)],
            OptimizerConfig(optimizer="sgd", bf16=True, lr=0.1),
            ProcessGroupCollection.use_mpu_process_groups(),
        )
        for each in optimizer.get_parameters():
            each.grad = torch.ones_like(each)
        squares = round(float(optimizer.get_grad_norm()) ** 2)
        for each in optimizer.get_parameters():
            each.grad.zero_()
        return parameters, squares, int(optimizer.count_zeros())


def unscaled_ones(fault: str | None, expert_overflow: bool) -> tuple[float, ...]:
    """Return the loss scale after an overflow at 16, then what the optimizers of dense weights and of experts make of
    gradients of ones, multiplied by it.
    """
    start(expert_model_parallel_size=2)
    half = {"fp16": True, "params_dtype": torch.float16}
    model = gpt(**EXPERTS, expert_model_parallel_size=2, **half).half()
    wrapped = DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)
    config = OptimizerConfig(optimizer="sgd", lr=0.1, initial_loss_scale=16.0, hysteresis=1, **half)
    optimizer = get_megatron_optimizer(config, [wrapped])
    overflow = next(
        each for each in model.parameters() if getattr(each, "allreduce", True) is not expert_overflow
    )
    with mb_guard.without(fault) if fault else nullcontext():
        for value in (float("inf"), 1.0):
            scale = float(optimizer.get_loss_scale())
            for each in model.parameters():
                each.main_grad.fill_(scale)
            overflow.main_grad[0] = value * scale
            optimizer.prepare_grads()
    parts = [part.get_parameters() for part in optimizer.chained_optimizers]
    return (scale, *(float(torch.cat([each.grad.flatten() for each in part]).abs().max()) for part in parts))


def clipped(fault: str | None) -> float:
    """Clip the weight of one of two ranks, with two query groups; return the distance from the formula of QK-clip."""
    size, heads, groups, alpha = 4, 4, 2, 0.3
    weight = torch.randn((heads + 2 * groups) * size, 8, generator=torch.Generator().manual_seed(0))
    eta = torch.tensor([0.5, 0.9])
    attention = SimpleNamespace(
        query_projection_size=2 * heads * size,
        kv_projection_size=2 * groups * size,
        hidden_size_per_attention_head=size,
        num_attention_heads_per_partition=heads,
        num_query_groups_per_partition=groups,
        qk_clip_balancing_eta=eta.view(groups, 1, 1),
        config=SimpleNamespace(qk_clip_alpha=alpha),
    )
    factors = [
        [each**alpha] * (heads // groups * size) + [each ** (1 - alpha)] * size + [1.0] * size for each in eta
    ]
    right = weight * torch.tensor(factors).view(-1, 1)
    with mb_guard.without(fault) if fault else nullcontext():
        weight.copy_(SelfAttention._clip_linear_qkv(attention, weight.clone()))  # as clip_qk does
    return float((weight - right).abs().max())
