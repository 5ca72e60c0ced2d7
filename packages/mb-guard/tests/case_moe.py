"""Functions that run on ranks of `test_moe.py`."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import GroupedMLPSubmodules, SequentialMLP, TEGroupedMLP
from megatron.core.transformer.moe.moe_utils import pad_routing_map
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig
from tiny_gpt import EXPERTS, LENGTH, batch, forward_step, gpt, gradients, rows, start

import mb_guard
from mb_guard.errors import TokenCountError
from mb_host.megatron.hybrid import host_hybrid_spec


def leaving_out(fault: str | None) -> AbstractContextManager[None]:
    """Take a correction out."""
    return mb_guard.without(fault) if fault else nullcontext()


def balancing(settings: dict[str, Any], *microbatches: Any) -> torch.Tensor:
    """Return the part of the first router's gradient that comes from balancing losses."""
    off = {**settings, "moe_aux_loss_coeff": 0.0, "moe_z_loss_coeff": None}
    name = "decoder.layers.0.mlp.router.weight"
    with_, without_ = (gradients(gpt(**EXPERTS, **each), microbatches)[name] for each in (settings, off))
    return with_ - without_


def under_masks(fault: str | None, settings: dict[str, Any]) -> list[float]:
    """Return the balancing gradient with fewer tokens in the loss, relative to that with all."""
    start()
    settings = {**settings, "calculate_per_token_loss": True}
    with leaving_out(fault):
        found = []
        for tokens in (LENGTH, LENGTH // 2, LENGTH // 4, LENGTH // 8):
            mask = torch.zeros(2, LENGTH)
            mask[:, :tokens] = 1
            found.append(balancing(settings, batch(mask)))
    return [float((each * found[0]).sum() / found[0].square().sum()) for each in found]


def own_divisor(divisor: int, settings: dict[str, Any]) -> str:
    """Return the error of a loss function that returns a number for two rows of which each token is in the loss."""
    start()

    def step(iterator: Any, model: Any) -> tuple[Any, Any]:
        output, _ = forward_step(iterator, model)
        return output, lambda losses: (losses.sum(), torch.tensor(divisor, dtype=torch.int), {})

    try:
        gradients(gpt(**settings, calculate_per_token_loss=True), [batch(torch.ones(2, LENGTH))], step)
    except TokenCountError as error:
        return str(error)
    return ""


def padded(fault: str | None, settings: dict[str, Any]) -> float:
    """Return how far padded rows are from the same rows in microbatches of their own length, relative."""
    start()
    lengths = (LENGTH, LENGTH // 2)
    padding = torch.arange(LENGTH) >= torch.tensor(lengths)[:, None]
    settings = {**settings, "calculate_per_token_loss": True}
    whole = batch(~padding, padding_mask=padding)
    short = [
        {name: each[:, :length] for name, each in rows(whole, row).items()}
        for row, length in enumerate(lengths)
    ]
    for each in short:
        del each["padding_mask"]
    right = balancing(settings, *short)
    with leaving_out(fault):
        return float((balancing(settings, whole) - right).norm() / right.norm())


def over_replicas(fault: str | None, per_token: bool) -> float:
    """Return the global balancing gradient of a row on each of two replicas, relative to both rows on one."""
    settings = {
        "moe_router_load_balancing_type": "global_aux_loss",
        "moe_aux_loss_coeff": 0.5,
        "calculate_per_token_loss": per_token,
    }
    whole = batch(torch.ones(2, LENGTH))
    with leaving_out(fault):
        start(tensor_model_parallel_size=1)
        own = balancing(settings, rows(whole, parallel_state.get_data_parallel_rank()))
        # Both replicas with both rows have the gradient of one replica with both.
        right = balancing({**settings, "moe_router_load_balancing_type": "aux_loss"}, whole)
    return float((own * right).sum() / right.square().sum())


def router(**settings: Any) -> TopKRouter:
    """Build a router whose expert bias is updated."""
    start()
    config = TransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        num_moe_experts=4,
        moe_router_load_balancing_type="none",
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        add_bias_linear=False,
        **settings,
    )
    return TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())


def counted(fault: str | None, *, half: bool, padding: bool) -> tuple[list[float], list[float]]:
    """Return the tokens of each expert that a router counts, and those of its own routing map."""
    with leaving_out(fault):
        one = router()
        if half:
            one.bfloat16()
        logits = torch.randn(1500, 2, 4, generator=torch.Generator().manual_seed(0))
        mask = torch.rand(1500, 2) < 0.5 if padding else None
        one._maintain_float32_expert_bias()
        _, routing_map = one.routing(logits, padding_mask=mask)
        kept = routing_map if mask is None else routing_map[~mask.reshape(-1)]
        return one.local_tokens_per_expert.tolist(), kept.sum(0).float().tolist()


def counted_padding(fault: str | None) -> tuple[list[float], list[float]]:
    """Count with a padding mask."""
    return counted(fault, half=False, padding=True)


def counted_in_half(fault: str | None) -> tuple[list[float], list[float]]:
    """Count after the conversion to bfloat16."""
    return counted(fault, half=True, padding=False)


def hybrid_layers(fault: str | None) -> list[tuple[bool, int]]:
    """Return whether each router of a hybrid's multi-token prediction is marked, and the layer that it logs."""
    start()
    config = TransformerConfig(
        num_layers=3,
        hidden_size=32,
        num_attention_heads=4,
        mtp_num_layers=1,
        add_bias_linear=False,
        mamba_state_dim=8,
        mamba_head_dim=8,
        mamba_num_groups=2,
        **EXPERTS,
    )
    with leaving_out(fault):
        model = HybridModel(
            config=config,
            hybrid_stack_spec=host_hybrid_spec(config),
            vocab_size=64,
            max_sequence_length=LENGTH,
            hybrid_layer_pattern="M*E/*E",
            position_embedding_type="rope",
        )
    return [
        (module.is_mtp_layer, module.layer_number)
        for module in model.mtp.modules()
        if isinstance(module, TopKRouter)
    ]


def kept(fault: str | None, policy: str, to_capacity: bool) -> list[list[int]]:
    """Return the positions of the tokens that each expert keeps of 8, half of them padding, with a capacity of 2."""
    with leaving_out(fault):
        one = router(
            moe_router_topk=1,
            moe_expert_capacity_factor=1.0,
            moe_token_drop_policy=policy,
            moe_token_dispatcher_type="alltoall",
            moe_pad_expert_input_to_capacity=to_capacity,
        )
        # all choose the first expert; padding, in the even places, with a higher probability
        logits = torch.full((8, 1, 4), -5.0)
        logits[:, 0, 0] = torch.tensor([4.0, 0.0, 4.0, 3.0, 4.0, 1.0, 4.0, 2.0])
        padding = (torch.arange(8) % 2 == 0)[:, None]
        probabilities, _ = one.routing(logits, padding_mask=padding)
    return [each.nonzero().flatten().tolist() for each in probabilities.T]


def dropped_last(fault: str | None) -> tuple[list[int], list[int]]:
    """Return the tokens that an expert keeps by position, and the first of those that chose it."""
    from megatron.core.transformer.moe import moe_utils

    chosen = torch.rand(256, 4, generator=torch.Generator().manual_seed(0)) < 0.6
    with leaving_out(fault):
        _, kept_map = moe_utils.apply_router_token_dropping(chosen.float(), chosen, 1, 0.5, "position")
    return kept_map[:, 0].nonzero().flatten().tolist(), chosen[:, 0].nonzero().flatten()[:32].tolist()


def jittered(fault: str | None) -> tuple[bool, bool]:
    """Return whether a router changes its input in training and in evaluation."""
    one, hidden = router(moe_input_jitter_eps=0.1), torch.ones(8, 1, 32)
    with leaving_out(fault):
        training = not torch.equal(one.apply_input_jitter(hidden), hidden)
        return training, not torch.equal(one.eval().apply_input_jitter(hidden), hidden)


def wrong_length() -> None:
    """Pass the padding mask of a shorter sequence."""
    start()
    whole = batch(torch.ones(1, LENGTH), padding_mask=torch.zeros(1, LENGTH - 2, dtype=torch.bool))
    gradients(gpt(**EXPERTS), [whole])


def padded_counts(tokens: int, routed: int, multiple: int) -> int:
    """Return the tokens of an expert after padding to a multiple."""
    routing_map = torch.arange(tokens)[:, None] < routed
    return int(pad_routing_map(routing_map, multiple).sum())


def drawn(fault: str | None, grouped: bool) -> list[int]:
    """Return which weights of experts and of the layer behind them are equal on both expert-parallel ranks.

    Linear layers of Transformer Engine draw weights that are on the host from the stream of the host.
    """

    def linear(
        number: int, inputs: int, outputs: int, *, init_method: Any, **_others: Any
    ) -> torch.nn.Module:
        weights = [torch.nn.Parameter(torch.empty(outputs, inputs)) for _ in range(number)]
        for weight in weights:
            init_method(weight)
        return torch.nn.ParameterList(weights)

    start(expert_model_parallel_size=2)
    torch.default_generator.manual_seed(0)
    config = gpt(**EXPERTS, expert_model_parallel_size=2, use_cpu_initialization=True).config
    groups = ProcessGroupCollection.use_mpu_process_groups()
    with leaving_out(fault):
        if grouped:
            experts = TEGroupedMLP(2, config, GroupedMLPSubmodules(linear, linear), pg_collection=groups)
        else:
            parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
            experts = SequentialMLP(2, config, parts, pg_collection=groups)
    found = [*experts.parameters(), torch.rand(3)]
    whole = [torch.stack([each, each]) for each in found]
    for both, own in zip(whole, found, strict=True):
        torch.distributed.all_gather(list(both.detach()), own.detach().contiguous(), group=groups.ep)
    return [int(torch.equal(*both)) for both in whole]
