"""Value heads and frozen routers match between two ranks and one, from one checkpoint and back to it."""

from itertools import repeat

import pytest
import torch
from megatron.core import dist_checkpointing
from megatron.core.distributed import DistributedDataParallelConfig
from tiny_training import prepare, start
from torch.distributed.checkpoint import CheckpointException

from mb_host.megatron.layers import host_block_spec
from mb_models import (
    FreezingError,
    GPTModelConfig,
    GPTModelProvider,
    HeadError,
    LinearForLastLayer,
    T5ModelConfig,
    T5ModelProvider,
    create_value_head_hook,
    freeze_moe_router,
    make_value_model,
    wrap_ddp,
    wrap_half_precision,
)

CPU = torch.device("cpu")
STEPS, SIZE = 4, 3
SPLITS = ("tensor_model", "pipeline_model", "virtual", "overlap_p2p", "batch_p2p", "sequence")
"""Prefixes of the fields that split a model."""
TP2 = {"tensor_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2}
INTERLEAVED = {
    **PP2,
    "virtual_pipeline_model_parallel_size": 2,
    "overlap_p2p_comm": True,
    "batch_p2p_comm": False,
}
ROUTED = {
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 48,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_load_balancing_type": "none",
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": 48,
    "moe_shared_expert_gate": True,
}
TIED = {"share_embeddings_and_output_weights": True}


def batch():
    tokens = torch.randint(128, (4, 32), generator=torch.Generator().manual_seed(0))
    return {"tokens": tokens, "position_ids": torch.arange(32).expand(4, 32)}


def build(settings, groups):
    settings = {**settings, "calculate_per_token_loss": True, "num_layers": 4}
    return GPTModelProvider(GPTModelConfig(**settings), layer_spec=host_block_spec, device=CPU), groups


def with_head(settings, groups, *, size=SIZE):
    provider, groups = build(settings, groups)
    hook = create_value_head_hook(64, settings.get("sequence_parallel", False), size)
    return provider, freeze_moe_router(hook(provider.provide_chunks(groups)))


def states(chunks, groups):
    return {
        f"model{number}": chunk.sharded_state_dict(metadata={"dp_cp_group": groups.dp_cp})
        for number, chunk in enumerate(chunks)
    }


def load(chunks, groups, folder):
    loaded = dist_checkpointing.load(states(chunks, groups), str(folder))
    for number, chunk in enumerate(chunks):
        chunk.load_state_dict(loaded[f"model{number}"])


def forward_step(batches, model):
    whole = next(batches)
    values = model(whole["tokens"], whole["position_ids"], None)

    def loss(values):
        wanted = torch.stack([whole["tokens"] % (number + 5) / 7 for number in range(SIZE)], -1)
        total, count = (values - wanted).square().sum(), torch.tensor(wanted.numel(), dtype=torch.int)
        return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}

    return values, loss


def weights(chunk):
    """Return the parameters, and the biases that balance experts, which Megatron keeps in a buffer."""
    return [
        (name, value)
        for name, value in chunk.state_dict().items()
        if isinstance(value, torch.Tensor) and not name.endswith("tokens_per_expert")
    ]


def train(settings, groups, folder):
    """Train from the weights in a folder; return losses (last stage) and the names of weights that changed."""
    provider, chunks = with_head(settings, groups)
    load(chunks, groups, folder)
    before = [{name: value.clone() for name, value in weights(chunk)} for chunk in chunks]
    training = prepare(provider, chunks, groups, lr=5e-4)
    once = {"micro_batches": 2, "micro_batch_size": 4, "forward_step": forward_step}
    losses = [training.step(lambda: repeat(batch()), **once) for _ in range(STEPS)]
    still = {
        name
        for chunk, values in zip(chunks, before, strict=True)
        for name, value in weights(chunk)
        if torch.equal(value, values[name])
    }
    return chunks, losses, still


def train_here(settings, folder, into):
    """Train on this rank and save; return the results, and the chunks that have a head."""
    groups = start(settings)
    chunks, losses, still = train(settings, groups, folder)
    dist_checkpointing.save(states(chunks, groups), str(into))
    heads = [isinstance(chunk._modules.get("output_layer"), LinearForLastLayer) for chunk in chunks]
    return losses, still, heads


def first_weights(settings):
    """Return the initial weight of the head on this rank."""
    return with_head(settings, start(settings))[1][-1].output_layer.weight.tolist()


@pytest.mark.parametrize(
    ("layout", "heads"),
    [
        (TP2, [[True], [True]]),
        ({**TP2, "sequence_parallel": True, **ROUTED}, [[True], [True]]),
        ({**PP2, **TIED, **ROUTED}, [[False], [True]]),
        ({**INTERLEAVED, **ROUTED}, [[False, False], [False, True]]),
    ],
    ids=["tp2", "tp2 sp", "pp2 tied", "pp2 vpp2"],
)
def test_two_ranks_learn_values_as_one_does(pool, tiny, groups, tmp_path, layout, heads):
    alone = {**tiny, **{name: layout[name] for name in layout if not name.startswith(SPLITS)}}
    for name in ("start", "end"):
        (tmp_path / name).mkdir()
    dist_checkpointing.save(states(with_head(alone, groups)[1], groups), str(tmp_path / "start"))
    chunks, losses, still = train(alone, groups, tmp_path / "start")
    ranks = pool.run(train_here, {**tiny, **layout}, tmp_path / "start", tmp_path / "end")
    assert ranks[-1][0] == pytest.approx(losses, abs=1e-5)
    assert losses[-1] < losses[0] - 0.05
    assert [rank[2] for rank in ranks] == heads
    frozen = ("router.weight", "router.expert_bias", "shared_experts.gate_weight")
    assert all(name.endswith(frozen) for name in still)
    assert len(still) == (3 * 4 if "num_moe_experts" in layout else 0)
    _, [again] = with_head(alone, groups)
    load([again], groups, tmp_path / "end")
    assert torch.allclose(again.output_layer.weight, chunks[0].output_layer.weight, atol=1e-5)


def test_ranks_that_share_a_sequence_draw_one_head(pool, tiny):
    one, other = pool.run(first_weights, {**tiny, **TP2, "sequence_parallel": True})
    assert one == other


def test_one_value_for_each_token(tiny, groups):
    provider, _ = build({**tiny, "bf16": True, "params_dtype": "bfloat16"}, groups)
    [chunk] = make_value_model(64, False)(provider.provide_chunks(groups))
    [half] = wrap_half_precision([chunk])
    values = half(batch()["tokens"], batch()["position_ids"], None)
    assert (values.shape, values.dtype, chunk.output_layer.weight.dtype) == (
        (4, 32, 1),
        torch.float32,
        torch.bfloat16,
    )


def test_a_language_models_output_is_not_taken_for_a_head(tiny, groups, tmp_path):
    provider, _ = build(tiny, groups)
    dist_checkpointing.save(states(provider.provide_chunks(groups), groups), str(tmp_path))
    with pytest.raises(CheckpointException, match=r"output_layer\.head\.weight"):
        load(with_head(tiny, groups)[1], groups, tmp_path)


@pytest.mark.parametrize(
    ("settings", "hook", "message"),
    [
        ({}, create_value_head_hook(32, False), "hidden_size=32, because the model has 64"),
        ({}, create_value_head_hook(64, True), "sequence_parallel=True, because the model has False"),
        ({}, create_value_head_hook(64, False, 0), "input_size=64, output_size=0"),
        ({"mtp_num_layers": 1}, make_value_model(64, False), "mtp_num_layers=1"),
    ],
)
def test_a_head_that_does_not_fit_is_rejected(tiny, groups, settings, hook, message):
    chunks = build({**tiny, **settings}, groups)[0].provide_chunks(groups)
    with pytest.raises(HeadError, match=message):
        hook(chunks)


def test_chunks_that_are_wrapped_or_missing_are_rejected(tiny, groups):
    chunks = build(tiny, groups)[0].provide_chunks(groups)
    with pytest.raises(HeadError, match="2 chunks, because a rank of this model has 1"):
        make_value_model(64, False)([*chunks, *chunks])
    [wrapped] = wrap_ddp(chunks, DistributedDataParallelConfig(), pg_collection=groups)
    with pytest.raises(HeadError, match="DistributedDataParallel is not a language model"):
        make_value_model(64, False)(wrapped)
    with pytest.raises(FreezingError, match=r"got a DistributedDataParallel.*Freeze before wrapping"):
        freeze_moe_router(wrapped)


def test_a_router_with_quantile_balancing_cannot_be_frozen(tiny, groups):
    settings = {**tiny, **ROUTED, "moe_router_load_balancing_type": "quantile_balancing"}
    settings |= {"moe_router_enable_expert_bias": False}
    chunks = build(settings, groups)[0].provide_chunks(groups)
    with pytest.raises(FreezingError, match="updates the quantiles that route tokens in every step"):
        freeze_moe_router(chunks)
    assert all(value.requires_grad for value in chunks[0].parameters())


def test_a_t5_has_another_output_layer(groups):
    from mb_host.megatron.t5 import host_t5_spec

    section = T5ModelConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        seq_length=32,
        vocab_size=128,
        transformer_impl="local",
    )
    chunks = T5ModelProvider(section, layer_spec=host_t5_spec, device=CPU).provide_chunks(groups)
    with pytest.raises(HeadError, match=r"T5Model calls lm_head\.output_layer"):
        make_value_model(64, False)(chunks)


def test_only_routers_and_gates_are_frozen_including_those_of_mtp_layers(tiny, groups):
    settings = {**tiny, **ROUTED, "mtp_num_layers": 1}
    [chunk] = freeze_moe_router(build(settings, groups)[0].provide_chunks(groups)[0])
    frozen = sorted(name for name, value in chunk.named_parameters() if not value.requires_grad)
    places = [*(f"decoder.layers.{number}.mlp" for number in range(4)), "mtp.layers.0.mtp_model_layer.mlp"]
    kinds = ("router.weight", "shared_experts.gate_weight")
    assert frozen == [f"{place}.{kind}" for place in places for kind in kinds]
