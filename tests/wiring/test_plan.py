"""The plan of a run is mb-plan's, its configuration mb-config's: what both know is one thing, and they fit together."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from mb_config import RULES, smallest_world
from mb_config.megatron_lm.conversion import convert
from mb_config.megatron_lm.flag_table import parse_flags
from mb_config.preflight.module_layouts import rules_per_point
from mb_config.rules.environment import expandable_segments
from mb_config.rules.hardware import nvlink_gpus
from mb_metrics import model_flops_per_token
from mb_models.rules import parallelism
from mb_plan import GPU_MEMORY, Axis, make_plan, read_shape, run_sweep
from mb_plan.memory.overhead import FRAGMENTED, FRAGMENTED_EXPANDABLE, estimate_overhead
from mb_plan.memory.pipeline_schedule import batch_sizes
from mb_plan.shape.flops import flops_per_token
from mb_plan.time.gpus import GPU_SPEEDS
from mb_schema.batch_stages import scheduled_stages
from mb_schema.gpu_capabilities import KNOWN
from mb_schema.rules import Rule
from mb_trainer.registry import REGISTRY

TP, PP, CP = (f"{name}_model_parallel_size" for name in ("tensor", "pipeline", "context"))
CP, OFFSET = "context_parallel_size", "language_rank_offset"
SIZES = {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 64, "seq_length": 8}


def test_a_gpu_whose_memory_or_speed_is_known_has_a_name_that_options_accept() -> None:
    assert {*GPU_MEMORY, *GPU_SPEEDS} <= {*KNOWN}
    assert {name: speed.nvlink_gpus for name, speed in GPU_SPEEDS.items()} == {
        name: nvlink_gpus(name) for name in GPU_SPEEDS
    }


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {TP: 2, PP: 2, CP: 3},
        {TP: 2, CP: 2, "num_moe_experts": 16, "expert_model_parallel_size": 4},
        {TP: 2, "num_moe_experts": 8, "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1},
        {TP: 4, "vision_tensor_model_parallel_size": 2, OFFSET: 0},
        {TP: 2, "vision_tensor_model_parallel_size": 1, OFFSET: 2},
    ],
)
def test_the_smallest_number_of_processes_is_one(layout: Mapping[str, Any]) -> None:
    images = {"vision_num_layers": 2, "vision_hidden_size": 64, "vision_num_attention_heads": 8}
    vision = {**images, "patch_size": 8, "image_size": 16} if OFFSET in layout else {}
    model = {**SIZES, **vision, **layout}
    assert read_shape(model).smallest_world == smallest_world(model)


@pytest.mark.parametrize("text", ["0:64", "0:64 1B:256", "0:1.5K, 2M:3k"])
def test_a_schedule_of_batches_has_one_meaning(text: str) -> None:
    assert batch_sizes({"step_batch_size_schedule": text}) == tuple(
        stage.size for stage in scheduled_stages(text)
    )


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True"},
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:true"},
    ],
)
def test_settings_of_the_allocator_have_one_meaning(env: Mapping[str, str]) -> None:
    found = estimate_overhead({"model": SIZES, "env_vars": env}, data_parallel=1, activations=10_000)
    share = FRAGMENTED_EXPANDABLE if expandable_segments(env) else FRAGMENTED
    assert found.fragmentation == round(10_000 * share)


def test_rules_of_the_configuration_reject_points_of_a_sweep() -> None:
    axes = [Axis(path=f"model.{TP}", values=(1, 2, 3)), Axis(path=f"model.{PP}", values=(1, 16))]
    model = {"num_layers": 8, "num_attention_heads": 8, TP: 1, PP: 1}
    swept = run_sweep({"model": model}, axes, (*RULES, *parallelism.RULES), facts={"world_size": 8})
    assert [(group.rules, group.count) for group in swept.rejected] == [
        (("V030", "P05"), 2),
        (("V030", "P02"), 1),
        (("V030", "P05", "P02"), 1),
    ]
    assert swept.problems["P02"].message == "8 attention heads cannot be split into tp=3 equal parts"


def test_points_of_a_sweep_can_differ_in_their_modules() -> None:
    def rule(number: str, fact: str) -> Rule:
        def test(size: object, processes: int) -> str | None:
            return f"{processes}" if processes != 2 else None

        fields = (f"model.{TP}", f"facts.{fact}")
        return Rule(id=number, fields=fields, test=test, why="w", fix="F.", fails={}, passes={})

    model = {OFFSET: 0, TP: 1, "vision_tensor_model_parallel_size": None}
    rules = rules_per_point([rule("W", "world_size"), rule("A", "all_processes")], model)
    axes = [Axis(path=f"model.{OFFSET}", values=(0, 1)), Axis(path="facts.world_size", values=(2, 3))]
    result = run_sweep({"model": model}, axes, rules)
    assert result.passing == ((0, 0),)
    assert [(group.count, group.rules) for group in result.rejected] == [(2, ("W",)), (1, ("W", "A"))]


def test_a_script_with_swiglu_has_the_parameters_of_the_model_that_megatron_builds() -> None:
    """The number by hand: two embeddings, and in each layer four matrices of attention, three of the MLP, two norms."""
    flags = (
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --mock-data --swiglu "
        "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
        "--untie-embeddings-and-output-weights --tokenizer-type NullTokenizer --vocab-size 32000"
    )
    model = convert(parse_flags(flags.split())).nested()["model"]
    hidden, width = 4096, int(4 * 4096 * 2 / 3 / 64) * 64
    layer = 4 * hidden * hidden + 3 * hidden * width + 2 * hidden
    total = 2 * 32000 * hidden + 32 * layer + hidden
    assert (width, total) == (10880, 6_688_083_968)
    assert make_plan({"model": model}, vocab_size=32000).parameters == total


FLOPS: Mapping[str, Mapping[str, Any]] = {
    "grouped queries, gated MLP": {"num_query_groups": 4, "gated_linear_unit": True, "ffn_hidden_size": 96},
    "output gate": {"attention_output_gate": True, "kv_channels": 16},
    "every second layer has a window": {"window_size": (3, 0), "window_attn_skip_freq": 2},
    "windows by layer": {"window_size": (3, 0), "window_attn_skip_freq": [1, 1, 0, 0, 1, 1, 0, 1]},
    "experts": {
        "num_moe_experts": 8,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 32,
        "moe_layer_freq": [0, 1] * 4,
    },
    "shared experts": {
        "num_moe_experts": 8,
        "moe_shared_expert_intermediate_size": 48,
        "moe_shared_expert_gate": True,
    },
    "experts behind projections": {"num_moe_experts": 8, "moe_latent_size": 24, "moe_ffn_hidden_size": 32},
    "latent attention": {
        "multi_latent_attention": True,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "qk_head_dim": 8,
        "qk_pos_emb_head_dim": 4,
        "v_head_dim": 8,
    },
    "compressed queries": {
        "multi_latent_attention": True,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_head_dim": 8,
        "qk_pos_emb_head_dim": 4,
        "v_head_dim": 8,
    },
    "multi-token prediction": {"mtp_num_layers": 2, "num_moe_experts": 8, "moe_layer_freq": [0, 1] * 4},
    "hybrid": {"hybrid_layer_pattern": "MG*-E/*-/*-", "num_moe_experts": 4, "mamba_num_heads": 4},
    "windows of a prediction": {"mtp_num_layers": 2, "window_size": (3, 0), "window_attn_skip_freq": 2},
    "windows of a hybrid": {
        "hybrid_layer_pattern": "M*-**/-*/-*",
        "mamba_num_heads": 4,
        "window_size": (3, 0),
        "window_attn_skip_freq": [0, 1, 0, 0, 1],
    },
    "T5": {"decoder_seq_length": 4, "encoder_num_layers": 3},
    "images": {
        "vision_num_layers": 2,
        "vision_hidden_size": 32,
        "vision_num_attention_heads": 2,
        "patch_size": 8,
        "image_size": 32,
    },
}


@pytest.mark.parametrize("name", FLOPS)
def test_operations_of_a_token_are_those_that_are_logged(name: str) -> None:
    """The plan counts them from its shape, mb-metrics by itself."""
    model = {**SIZES, "position_embedding_type": "rope", **FLOPS[name]}
    planned = make_plan({"model": model, "dataset": {"seq_length": 16}}).flops_per_token
    logged = model_flops_per_token(model, seq_length=16).parts
    assert planned == pytest.approx(logged)


def test_operations_of_sequences_of_different_lengths_are_those_that_are_logged() -> None:
    model = {
        **SIZES,
        "position_embedding_type": "rope",
        **FLOPS["images"],
        "window_size": (3, 0),
        "window_attn_skip_freq": 2,
    }
    planned = flops_per_token(read_shape(model), seq_length={4: 1.5, 20: 0.5})
    assert planned == pytest.approx(model_flops_per_token(model, seq_length=[4, 4, 4, 20]).parts)


def test_operations_of_every_recipe_are_those_that_are_logged() -> None:
    for name, recipe in REGISTRY.recipes.items():
        model = recipe.build().model
        fields = {item.name: getattr(model, item.name) for item in dataclasses.fields(model)}
        fields |= fields.pop("transformer", None) or {}
        planned = flops_per_token(read_shape(model, vocab_size=50_304), seq_length=512)
        rows = fields.get("vocab_size") or 50_304
        logged = model_flops_per_token(fields, seq_length=512, vocab_size=rows).parts
        assert planned == pytest.approx(logged), name
