"""Resource plans: bytes of parameters, activations and microbatches in flight."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_plan import make_plan
from mb_plan.memory.activations import (
    Microbatch,
    chunk_bytes,
    kept_bytes,
    layer_bytes,
    read_activation_settings,
)
from mb_plan.memory.model_chunks import split_into_chunks
from mb_plan.memory.parameter_counts import ParameterCount
from mb_plan.memory.parameter_storage import dtype_bytes, parameter_storage, sharded_bytes
from mb_plan.memory.pipeline_schedule import PipelineSchedule, count_microbatches
from mb_plan.shape.model_shape import read_shape

GPT3 = {
    "num_layers": 96,
    "hidden_size": 12288,
    "num_attention_heads": 96,
    "vocab_size": 51200,
    "seq_length": 2048,
    "attention_backend": "unfused",
    "bf16": True,
}
S, H, A, V = 2048, 12288, 96, 51200
BF16 = {"bf16": True}


def layer(change=(), *, micro_batch=1, experts=False):
    model = {**GPT3, **dict(change)}
    shape, settings = read_shape(model), read_activation_settings(model, number_bytes=2)
    tokens = S * micro_batch // model.get("context_parallel_size", 1)
    parts = layer_bytes(shape, settings, Microbatch(tokens=tokens, seq_length=S), experts=experts)
    return kept_bytes(parts, settings)


TP8 = {"tensor_model_parallel_size": 8}
SP8 = {**TP8, "sequence_parallel": True}
SELECTIVE = {"recompute_granularity": "selective"}


@pytest.mark.parametrize(
    ("change", "size"),
    [
        ({}, S * H * (34 + 5 * A * S / H)),
        (TP8, S * H * (10 + 24 / 8 + 5 * A * S / (H * 8))),
        (SP8, S * H / 8 * (34 + 5 * A * S / H)),
        ({**SELECTIVE, **TP8}, S * H * (10 + 24 / 8)),
        ({**SELECTIVE, **SP8}, S * H * 34 / 8),
    ],
    ids=["one rank", "tensor", "sequence", "selective, tensor", "selective, sequence"],
)
def test_a_dense_layer_saves_the_bytes_of_korthikanti_et_al_2022_table_2(change, size):
    assert layer(change) == size


def test_fused_attention_saves_no_scores_and_context_parallelism_splits_the_tokens():
    fused = {"attention_backend": "flash"}
    assert layer(fused) == S * (34 * H + 4 * A)
    assert layer({**fused, "context_parallel_size": 2}) == layer(fused) / 2


def test_without_dropout_no_masks_are_saved():
    dry = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    assert layer(dry) == S * H * (32 + 2 * A * S / H)


def test_experts_save_the_tokens_that_they_receive():
    moe = {
        "num_moe_experts": 8,
        "moe_ffn_hidden_size": H,
        "moe_router_topk": 2,
        "attention_backend": "flash",
        "bias_activation_fusion": True,
    }
    assert layer(moe, experts=True) - layer(moe) == S * 2 * 2 * 3 * H - 16 * S * H
    again = {**moe, "recompute_granularity": "selective", "recompute_modules": ["moe"]}
    assert layer(again, experts=True) == layer(again) - 16 * S * H


def test_gated_mlps_and_norms_can_be_recomputed():
    gated = {
        "gated_linear_unit": True,
        "ffn_hidden_size": H,
        "attention_backend": "flash",
        "bias_activation_fusion": True,
    }
    again = {**gated, **SELECTIVE, "recompute_modules": ["mlp", "layernorm"]}
    assert layer(gated) - layer(again) == S * 2 * (3 * H + 2 * H)


def test_an_activation_that_is_not_fused_saves_intermediate_tensors():
    gated = {"gated_linear_unit": True, "ffn_hidden_size": H, "moe_ffn_hidden_size": H, "moe_router_topk": 1}
    fused = {**gated, "bias_activation_fusion": True}
    assert layer(gated) - layer(fused) == 2 * S * 2 * H
    experts = {"num_moe_experts": 2}
    more = layer({**gated, **experts}, experts=True) - layer({**fused, **experts}, experts=True)
    assert more == 3 * S * 2 * H


def test_latent_attention_saves_compressed_and_full_tensors():
    mla = {
        "multi_latent_attention": True,
        "q_lora_rank": 100,
        "kv_lora_rank": 50,
        "qk_head_dim": 20,
        "qk_pos_emb_head_dim": 10,
        "v_head_dim": 15,
        "attention_backend": "flash",
    }
    plain = layer({"attention_backend": "flash"}) - 8 * S * H
    assert layer(mla) - plain == 2 * S * (160 + A * (30 + 30 + 15 + 15))
    again = {**mla, **SELECTIVE, "recompute_modules": ["mla_up_proj"]}
    assert layer(mla) - layer(again) == 2 * S * A * (30 + 30 + 15)


FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def chunk(change):
    model = {**GPT3, "num_layers": 4, **change}
    shape, settings = read_shape(model), read_activation_settings(model, number_bytes=2)
    return chunk_bytes(
        split_into_chunks(model, shape)[0], shape, settings, Microbatch(tokens=S, seq_length=S)
    )


def test_full_recomputation_saves_inputs_and_one_active_group():
    ends = S * H + 4 * S * H + 4 * S * V
    assert chunk({}) == (4 * layer() + ends, 0.0)
    assert chunk(FULL) == (4 * 2 * S * H + ends, layer())
    assert chunk({**FULL, "recompute_num_layers": 2}) == (2 * 2 * S * H + ends, 2 * layer())
    block = {**FULL, "recompute_method": "block", "recompute_num_layers": 3}
    assert chunk(block) == (3 * 2 * S * H + layer() + ends, layer())
    spread_out = {**FULL, **TP8, "distribute_saved_activations": True}
    assert chunk(spread_out)[0] == 4 * 2 * S * H / 8 + S * H + 4 * S * H + 4 * S * V / 8


def test_multi_token_prediction_saves_a_layer_and_logits():
    more = chunk({"mtp_num_layers": 1})[0] - chunk({})[0]
    assert more == layer() + 6 * 2 * S * H + 4 * S * V


def test_recomputed_multi_token_prediction_saves_its_two_inputs_and_that_of_the_output_layer():
    kept, peak = chunk({**FULL, "mtp_num_layers": 2})
    assert kept - chunk(FULL)[0] == 2 * (3 * 2 * S * H + 4 * S * V)
    assert peak == layer() + 3 * 2 * S * H
    sharded = {**FULL, **SP8}
    kept = chunk({**sharded, "mtp_num_layers": 1})[0] - chunk(sharded)[0]
    assert kept == (3 * 2 * S * H + 4 * S * V) / 8


def test_recomputed_blocks_leave_out_multi_token_prediction():
    block = {**FULL, "recompute_method": "block"}
    more = chunk({**block, "mtp_num_layers": 1})[0] - chunk(block)[0]
    assert more == chunk({"mtp_num_layers": 1})[0] - chunk({})[0]


def test_norms_of_queries_and_keys_save_their_inputs():
    groups = {"num_query_groups": 8}
    assert layer({**groups, "qk_layernorm": True}) - layer(groups) == 2 * S * (H + 8 * H / A)


def test_an_output_gate_saves_its_sigmoid_in_float32_and_its_product():
    assert layer({"attention_output_gate": True}) - layer() == S * H * (4 + 2)


def pipeline(stages, *, chunks=1, microbatches=64, **fields):
    return PipelineSchedule(stages=stages, chunks=chunks, microbatches=microbatches, group=stages, **fields)


def test_bubbles():
    assert pipeline(1).bubble == 0
    assert pipeline(4, microbatches=8).bubble == 3 / 11
    assert pipeline(4, chunks=2, microbatches=8).bubble == 3 / 19


def test_1f1b_holds_one_microbatch_per_following_stage():
    assert [pipeline(4).peak(stage, [1.0]) for stage in range(4)] == [4, 3, 2, 1]
    assert pipeline(4, microbatches=2).peak(0, [1.0], while_working=0.5) == 2.5


def test_interleaving_holds_more_by_the_factor_of_korthikanti_et_al_2022_section_4_2_3():
    stages, chunks = 4, 3
    most = pipeline(stages, chunks=chunks).peak(0, [1.0] * chunks)
    assert most == stages * chunks * (1 + (stages - 1) / (stages * chunks))
    assert pipeline(stages, chunks=chunks, ahead=1).peak(0, [1.0] * chunks) == most + 1


@settings(max_examples=50, deadline=None)
@given(stages=st.integers(2, 5), chunks=st.integers(1, 4), times=st.integers(1, 12), stage=st.integers(0, 4))
def test_a_few_microbatches_determine_the_peak_of_all(stages, chunks, times, stage):
    held, stage = [1.0 + chunk for chunk in range(chunks)], stage % stages
    one = pipeline(stages, chunks=chunks, microbatches=times * stages)
    assert one.peak(stage, held) == slow_peak(one, stage, held)


def slow_peak(pipeline, stage, held):
    """Walk through every pass of the step."""
    order = [
        chunk
        for _ in range(0, pipeline.microbatches, pipeline.group)
        for chunk in range(pipeline.chunks)
        for _ in range(pipeline.group)
    ]
    warmup = pipeline.stages - stage - 1
    if pipeline.chunks > 1:
        warmup = 2 * warmup + (pipeline.chunks - 1) * pipeline.group
    passes = [+held[chunk] for chunk in order[:warmup]]
    back = [-held[pipeline.chunks - 1 - chunk] for chunk in order]
    for forward, backward in zip(order[warmup:], back, strict=False):
        passes += [held[forward], backward]
    passes += back[max(len(order) - warmup, 0) :]
    levels = [sum(passes[: end + 1]) for end in range(len(passes))]
    assert levels[-1] == 0
    return max(levels)


def test_microbatches():
    assert count_microbatches(64, 2, 4) == 8
    assert [count_microbatches(*sizes) for sizes in ((None, 2, 4), (63, 2, 4), (64, 2, None))] == [None] * 3


DISTRIBUTED = {"use_distributed_optimizer": True}
PRECISE = {**BF16, "use_precision_aware_optimizer": True}
FSDP = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"}


@pytest.mark.parametrize(
    ("model", "optimizer", "ddp", "bytes_each"),
    [
        ({}, {}, {}, (4, 4, 8, 12)),
        ({}, {}, DISTRIBUTED, (4, 4, 8, 16)),
        (BF16, BF16, {}, (2, 2, 12, 14)),
        (BF16, BF16, {"grad_reduce_in_fp32": True}, (2, 4, 12, 14)),
        ({"fp16": True}, {"fp16": True}, DISTRIBUTED, (2, 2, 12, 14)),
        ({"params_dtype": "bfloat16"}, {}, {}, (2, 2, 12, 14)),
        (BF16, {**BF16, "optimizer": "lion"}, {}, (2, 2, 8, 10)),
        (BF16, {**BF16, "optimizer": "sgd"}, {}, (2, 2, 8, 10)),
        (BF16, {**BF16, "optimizer": "sgd", "sgd_momentum": 0.0}, {}, (2, 2, 4, 6)),
        (BF16, {**BF16, "optimizer": "muon"}, {}, (2, 2, None, None)),
        (BF16, PRECISE, DISTRIBUTED, (2, 2, 10, 12)),
        (BF16, {**PRECISE, "store_param_remainders": False}, DISTRIBUTED, (2, 2, 12, 14)),
        (BF16, {**PRECISE, "main_params_dtype": "float16", "exp_avg_dtype": "float8_e4m3fn",
                "exp_avg_sq_dtype": "bfloat16"}, DISTRIBUTED, (2, 2, 5, 7)),
        (BF16, {**BF16, "optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.75}, {}, (2, 2, 3, 14)),
        (BF16, BF16, FSDP, (2, 2, 12, 14)),
        (BF16, BF16, {**FSDP, "megatron_fsdp_main_grads_dtype": "float32",
                      "megatron_fsdp_main_params_dtype": None}, (2, 4, 8, 10)),
    ],
)  # fmt: skip
def test_bytes_of_a_parameter(model, optimizer, ddp, bytes_each):
    store = parameter_storage(model, optimizer=optimizer, ddp=ddp)
    assert (store.weights, store.gradients, store.optimizer, store.saved) == bytes_each


@pytest.mark.parametrize(
    ("ddp", "sharded"),
    [
        ({}, (False, False, False)),
        (DISTRIBUTED, (False, False, True)),
        ({**FSDP, "data_parallel_sharding_strategy": "no_shard"}, (False, False, False)),
        ({**FSDP, "data_parallel_sharding_strategy": "optim"}, (False, False, True)),
        (FSDP, (False, True, True)),
        ({**FSDP, "data_parallel_sharding_strategy": "optim_grads_params"}, (True, True, True)),
    ],
)
def test_state_that_is_sharded_over_the_replicas(ddp, sharded):
    store = parameter_storage({}, optimizer={}, ddp=ddp)
    assert (store.weights_sharded, store.gradients_sharded, store.optimizer_sharded) == sharded


def test_copies_of_sharded_state():
    two = {**FSDP, "num_distributed_optimizer_instances": 2}
    store = parameter_storage({}, optimizer={}, ddp=two)
    assert (store.instances, store.optimizer_instances) == (2, 2)
    outer = parameter_storage({}, optimizer={}, ddp={**two, "outer_dp_sharding_strategy": "optim"})
    assert (outer.instances, outer.optimizer_instances) == (2, 1)


def test_omissions_are_noted():
    assert "8- and 4-bit" in parameter_storage({**BF16, "fp8": "hybrid"}, optimizer=None, ddp=None).notes[0]
    assert (
        "'muon' is not counted" in parameter_storage({}, optimizer={"optimizer": "muon"}, ddp=None).notes[0]
    )
    gathered = {**FSDP, "data_parallel_sharding_strategy": "optim_grads_params"}
    assert "gathered" in parameter_storage({}, optimizer=None, ddp=gathered).notes[0]


def test_a_checkpoint_without_the_optimizer_contains_weights():
    checkpoint = {"save_optim": False}
    assert parameter_storage(BF16, optimizer=BF16, ddp=None, checkpoint=checkpoint).saved == 2


@pytest.mark.parametrize(
    ("optimizer", "ddp", "size"),
    [
        (PRECISE, DISTRIBUTED, 14),
        ({**PRECISE, "exp_avg_dtype": "float8_e4m3fn", "exp_avg_sq_dtype": "bfloat16"}, DISTRIBUTED, 14),
        ({**BF16, "optimizer": "lion"}, DISTRIBUTED, 10),
        ({**BF16, "optimizer": "muon"}, DISTRIBUTED, None),
        (PRECISE, {}, 12),
    ],
)
def test_a_fully_reshardable_checkpoint_contains_the_distributed_state_in_float32(optimizer, ddp, size):
    checkpoint = {"dist_ckpt_optim_fully_reshardable": True}
    assert parameter_storage(BF16, optimizer=optimizer, ddp=ddp, checkpoint=checkpoint).saved == size


def test_dense_parameters_and_experts_are_sharded_over_different_ranks():
    assert sharded_bytes(ParameterCount(0, 1000, 600), 12, dense_over=8, expert_over=2) == 12 * (125 + 300)


def test_dtypes_by_name():
    assert [dtype_bytes(name) for name in ("torch.float32", "bfloat16", "float8_e4m3fn", "uint8")] == [
        4,
        2,
        1,
        1,
    ]


SIZES = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "add_bias_linear": False,
    "position_embedding_type": "rope",
}
LINEAR_WEIGHTS = 2 * (4 * 64 * 64 + 2 * 64 * 256)


def weights_of(fields):
    return make_plan({"model": {**SIZES, **BF16, **fields}}).peak.rank_bytes.weights


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({}, 2),
        ({"fp8": "hybrid"}, 4),
        ({"fp8": "hybrid", "fp8_param": True}, 2),
        ({"fp8": "e4m3", "fp8_recipe": "mxfp8"}, 2 + 2 * 33 / 32),
        ({"fp4": "e2m1", "fp4_param": True}, 2 * 9 / 16),
    ],
)
def test_a_quantized_weight_has_a_copy_by_rows_and_one_by_columns(fields, size):
    """Transformer Engine keeps both, 33 bytes for 32 values of MXFP8 and 9 for 16 of NVFP4."""
    store = parameter_storage({**BF16, **fields}, optimizer=None, ddp=None)
    assert (store.weights, store.linear_weights) == (2, size)
    assert weights_of(fields) - weights_of({}) == pytest.approx((size - 2) * LINEAR_WEIGHTS)


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({}, 0),
        ({"cuda_graph_impl": "transformer_engine"}, LINEAR_WEIGHTS),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]}, 2 * 4 * 64 * 64),
        ({"cuda_graph_impl": "transformer_engine", "gradient_accumulation_fusion": True}, 0),
        ({"cuda_graph_impl": "full_iteration"}, 0),
    ],
)
def test_graphs_of_modules_keep_the_gradients_of_their_weights(fields, parameters):
    assert make_plan({"model": {**SIZES, **BF16, **fields}}).overhead.graphs == 2 * parameters


def test_graphs_of_layers_need_what_an_h200_measured():
    """1.36 billion parameters in the shape of Llama, 4 x 2 sequences: 37.1 GiB, and 21.3 of GPT-2 with 355 million."""
    common = {**BF16, "bias_activation_fusion": True, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    common |= {"cuda_graph_impl": "transformer_engine", "num_layers": 24, "num_attention_heads": 16}
    llama = {"hidden_size": 2048, "ffn_hidden_size": 5632, "vocab_size": 32_000, "gated_linear_unit": True}
    llama |= {"normalization": "RMSNorm", "add_bias_linear": False, "position_embedding_type": "rope"}
    gpt = {"hidden_size": 1024, "vocab_size": 50_304, "max_position_embeddings": 1024}
    gpt |= {"share_embeddings_and_output_weights": True, "position_embedding_type": "learned_absolute"}
    llama["share_embeddings_and_output_weights"] = False
    for shape, size, length, measured in ((llama, 2, 4096, 37.1), (gpt, 16, 1024, 21.3)):
        sections = {
            "model": {**common, **shape},
            "train": {"micro_batch_size": size, "global_batch_size": 4 * size},
            "dataset": {"seq_length": length},
            "optimizer": {"bf16": True, "use_precision_aware_optimizer": True},
            "ddp": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
        }
        plan = make_plan(sections, world_size=1)
        allocated = (plan.peak.rank_bytes.total + plan.overhead.graphs) / 2**30
        assert allocated == pytest.approx(measured, rel=0.04)
