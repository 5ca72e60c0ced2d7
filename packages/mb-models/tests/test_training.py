"""Training of a tiny GPT of every kind in one process, and its distribution over two ranks."""

from itertools import repeat

import pytest
import torch
from megatron.core import tensor_parallel
from tiny_training import prepare, start

from mb_host.megatron.layers import host_block_spec
from mb_models import (
    GPTForwardStep,
    GPTModelConfig,
    GPTModelProvider,
    get_batch,
    gpt_forward_step,
    local_spec,
    parameter_count,
)

CPU = torch.device("cpu")
EXPERTS = {"num_moe_experts": 4, "moe_ffn_hidden_size": 48, "moe_token_dispatcher_type": "alltoall"}
INTERLEAVED = {
    "pipeline_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": 2,
    "overlap_p2p_comm": True,
    "batch_p2p_comm": False,
}

LATENT = {
    "multi_latent_attention": True,
    "num_query_groups": None,
    "qk_layernorm": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 12,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 10,
    "rope_type": "rope",
}
STRETCHED = {"rope_type": "yarn", "rotary_scaling_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {
    "position_embedding_type": "yarn",
    "yarn_rotary_scaling_factor": 4.0,
    "yarn_original_max_position_embeddings": 16,
}


def batch():
    tokens = torch.randint(128, (4, 33), generator=torch.Generator().manual_seed(0))
    return {
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "loss_mask": torch.ones(4, 32),
        "position_ids": torch.arange(32).expand(4, 32),
    }


def train(settings, groups, *, steps, layer_spec=local_spec, forward_step=gpt_forward_step, **ddp):
    """Train on one repeated batch and return the loss of each step."""
    provider = GPTModelProvider(GPTModelConfig(**settings), layer_spec=layer_spec, device=CPU)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    training = prepare(provider, provider.provide_chunks(groups), groups, **ddp)
    once = {"micro_batches": 2, "micro_batch_size": 4, "forward_step": forward_step}
    return [training.step(lambda: repeat(batch()), **once) for _ in range(steps)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share_embeddings_and_output_weights": True},
        {"calculate_per_token_loss": True},
        {"bf16": True, "params_dtype": "bfloat16"},
        {**EXPERTS, "moe_aux_loss_coeff": 0.01},
    ],
    ids=["untied", "tied", "per token", "bf16", "experts"],
)
def test_the_loss_of_a_repeated_batch_decreases(tiny, groups, settings):
    losses = train({**tiny, **settings}, groups, steps=12)
    assert 4.6 < losses[0] < 5.1  # about ln(128)
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize(
    "settings",
    [
        {**LATENT, **STRETCHED},
        {**LATENT, **EXPERTS, "mtp_num_layers": 2, "moe_layer_freq": [0, 1], "moe_aux_loss_coeff": 0.01},
        YARN,
        {"rope_scaling": True},
        {"position_embedding_type": "none"},
        {"position_embedding_type": "learned_absolute"},
        {"window_size": (8, 0), "window_attn_skip_freq": 2, "softmax_type": "learnable"},
        {"attention_output_gate": True, "qk_layernorm": True},
        {**EXPERTS, "moe_router_load_balancing_type": "sinkhorn", "moe_router_topk": 1},
        {
            **EXPERTS,
            "moe_router_load_balancing_type": ["seq_aux_loss", "global_aux_loss"],
            "moe_aux_loss_coeff": [0.01, 0.01],
            "moe_z_loss_coeff": 1e-3,
            "moe_expert_capacity_factor": 1.5,
        },
        {
            **EXPERTS,
            "moe_router_load_balancing_type": "none",
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_num_groups": 2,
            "moe_router_group_topk": 1,
            "moe_shared_expert_intermediate_size": 48,
        },
    ],
    ids=[
        "latent yarn", "latent experts ahead", "yarn", "llama 3", "no positions", "learned", "window sinks", "gate",
        "sinkhorn", "capacity", "groups bias shared",
    ],
)  # fmt: skip
def test_the_loss_of_every_kind_of_gpt_decreases_with_the_hosts_layers(tiny, groups, settings):
    losses = train({**tiny, **settings}, groups, steps=10, layer_spec=host_block_spec)
    assert 4.6 < losses[0] < 5.1
    assert losses[-1] < losses[0] - 0.5


def test_a_distributed_optimizer_with_buckets_gives_the_same_losses(tiny, groups):
    ddp = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "bucket_size": 20_000}
    plain, sharded = train(tiny, groups, steps=5), train(tiny, groups, steps=5, **ddp)
    assert sharded == pytest.approx(plain, abs=1e-6)


def test_the_forward_step_passes_each_microbatch_loss_to_inspect_loss(tiny, groups):
    seen = []
    train(tiny, groups, steps=1, forward_step=GPTForwardStep(inspect_loss=seen.append))
    assert [loss.requires_grad for loss in seen] == [False, False]


def describe_chunks(settings):
    """Return the contents of each chunk of this rank: layers, embedding, output layer, parameters."""
    groups = start(settings)
    provider = GPTModelProvider(GPTModelConfig(**settings), layer_spec=local_spec, device=CPU)
    return [
        (
            [layer.layer_number for layer in chunk.decoder.layers],
            hasattr(chunk, "embedding"),
            hasattr(chunk, "output_layer"),
            sum(parameter.numel() for parameter in chunk.parameters()),
        )
        for chunk in provider.provide_chunks(groups)
    ]


def zigzag(sequence):
    """Return the tokens of this context-parallel rank, of a batch of consecutive numbers, or the error."""
    groups = start({"context_parallel_size": 2})
    tokens = torch.arange(sequence).expand(1, sequence)
    whole = {"tokens": tokens, "position_ids": tokens}
    try:
        cut = get_batch(iter([whole]), first_stage=True, last_stage=False, device=CPU, cp_group=groups.cp)
    except ValueError as error:
        return str(error)
    return cut.tokens_BS.tolist()


def test_an_interleaved_pipeline_splits_the_model_in_order(pool, tiny):
    settings = {**tiny, **INTERLEAVED, "num_layers": 4}
    first, last = pool.run(describe_chunks, settings)
    assert [chunk[:3] for chunk in (*first, *last)] == [
        ([1], True, False),
        ([3], False, False),
        ([2], False, False),
        ([4], False, True),
    ]
    assert sum(chunk[3] for chunk in (*first, *last)) == parameter_count(GPTModelConfig(**settings))


def test_the_first_stage_can_have_fewer_layers(pool, tiny):
    short = {"num_layers_in_first_pipeline_stage": 1}
    first, last = pool.run(
        describe_chunks, {**tiny, "num_layers": 4, "pipeline_model_parallel_size": 2, **short}
    )
    assert [chunk[0] for chunk in (*first, *last)] == [[1], [2, 3, 4]]


def test_context_parallel_ranks_read_balanced_slices(pool):
    assert pool.run(zigzag, 8) == [[[0, 1, 6, 7]], [[2, 3, 4, 5]]]


def test_an_indivisible_sequence_is_rejected(pool):
    assert all(
        "6 tokens are not divisible by twice the context-parallel size 2" in text
        for text in pool.run(zigzag, 6)
    )
