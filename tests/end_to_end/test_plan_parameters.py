"""Planned parameters are those of the really built Megatron model: on every rank, on every stage, and in all.

All ranks of a layout are built one after the other in this process, with process groups that do not communicate.
"""

from collections.abc import Mapping
from math import lcm

import pytest
import torch
from any_rank import DENSE, EP, ETP, MLA, MODERN, MOE, PP, SHARED, SP, TIED, TP, VP, build, standing_in
from megatron.core.models.gpt.gpt_model import GPTModel

from mb_host.megatron.hybrid import host_hybrid_spec
from mb_host.megatron.layers import host_block_spec
from mb_host.megatron.t5 import host_t5_spec
from mb_models import (
    MambaModelConfig,
    MambaModelProvider,
    MimoModelConfig,
    MimoModelProvider,
    MimoModules,
    ModuleGroups,
    T5ModelConfig,
    T5ModelProvider,
    hybrid_parameter_count,
    mimo_parameter_count,
)
from mb_models.mimo.config import module_ranks
from mb_models.peft.config import CanonicalLoRA, DoRA, LoRA
from mb_plan import make_plan
from mb_plan.shape.hybrid_pattern import layers_of

GLM = {
    "moe_layer_freq": [0, 1, 1, 1],
    "moe_shared_expert_gate": False,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
}
LEARNED = {"position_embedding_type": "learned_absolute"}

LAYOUTS: dict[str, dict[str, object]] = {
    "dense": DENSE,
    "dense tp2": {**DENSE, TP: 2},
    "dense tp8": {**DENSE, TP: 8},
    "dense pp4": {**DENSE, PP: 4},
    "dense tp2 pp2": {**DENSE, TP: 2, PP: 2},
    "dense tp4 pp2 sequence parallel": {**DENSE, **SP, TP: 4, PP: 2},
    "tied": {**DENSE, **TIED},
    "tied tp2": {**DENSE, **TIED, TP: 2},
    "tied pp2": {**DENSE, **TIED, PP: 2},
    "tied tp2 pp4": {**DENSE, **TIED, TP: 2, PP: 4},
    "tied pp2 vp2": {**DENSE, **TIED, PP: 2, VP: 2},
    "learned positions": {**DENSE, **LEARNED},
    "learned positions, longer, tied, tp2 pp2": {
        **DENSE, **LEARNED, **TIED, "max_position_embeddings": 48, TP: 2, PP: 2
    },
    "query/key/value bias alone": {**MODERN, "add_qkv_bias": True, TP: 2},
    "query and key norms": {**MODERN, "qk_layernorm": True, TP: 2},
    "query and key layer norms": {**DENSE, "qk_layernorm": True, PP: 2},
    "query and key norms over all heads, norms after": {
        **MODERN, "qk_layernorm": True, "qk_layernorm_scope": "all_heads", "norm_position": "post", TP: 2
    },
    "norms before and after pp2": {**MODERN, "norm_position": "pre_and_post", PP: 2},
    "parallel branches with one norm": {
        **DENSE, "residual_branches": "parallel_shared_norm", "layernorm_bias": False, TP: 2
    },
    "output gate": {**MODERN, "attention_output_gate": True, "num_query_groups": 4, TP: 2},
    "softmax sinks": {**DENSE, "softmax_type": "learnable", TP: 4},
    "wide heads": {**DENSE, "kv_channels": 20, TP: 2},
    "inner width by default": {**DENSE, "ffn_hidden_size": None, TP: 2},
    "grouped queries": MODERN,
    "grouped queries tp2": {**MODERN, TP: 2},
    "grouped queries, fewer than tp4": {**MODERN, TP: 4},
    "grouped queries pp2 vp2": {**MODERN, PP: 2, VP: 2},
    "grouped queries tp2 pp2 vp2 sequence parallel": {**MODERN, **SP, TP: 2, PP: 2, VP: 2},
    "experts": MOE,
    "experts with biases": {**DENSE, "num_moe_experts": 4, "moe_ffn_hidden_size": 32, EP: 2},
    "experts ep4": {**MOE, EP: 4},
    "experts ep8": {**MOE, EP: 8},
    "experts tp2 sequence parallel": {**MOE, **SP, TP: 2},
    "experts tp2 ep2": {**MOE, **SP, TP: 2, EP: 2},
    "experts tp4 ep2 etp1": {**MOE, **SP, TP: 4, EP: 2, ETP: 1},
    "experts tp2 ep4 etp2 pp2": {**MOE, **SP, TP: 2, EP: 4, ETP: 2, PP: 2},
    "experts etp2 tp1": {**MOE, ETP: 2, EP: 2},
    "experts in every second layer": {**MOE, "moe_layer_freq": 2, EP: 2},
    "experts after a dense layer": {**MOE, "moe_layer_freq": [0, 1, 1, 1], EP: 2, PP: 2},
    "experts after a dense layer, vp2": {**MOE, "moe_layer_freq": [0, 1, 1, 0], EP: 2, PP: 2, VP: 2},
    "experts as wide as a dense layer": {**MOE, "moe_ffn_hidden_size": None, EP: 2},
    "shared experts": SHARED,
    "shared experts tp2 ep2 etp1": {**SHARED, **SP, TP: 2, EP: 2, ETP: 1},
    "shared experts without gate, pp2 ep2": {**SHARED, "moe_shared_expert_gate": False, PP: 2, EP: 2},
    "expert bias": {**MOE, "moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid", EP: 2},
    "latent attention": MLA,
    "latent attention tp2": {**MLA, TP: 2},
    "latent attention with norms tp2 pp2": {**MLA, "qk_layernorm": True, TP: 2, PP: 2},
    "latent attention, queries whole": {**MLA, "q_lora_rank": None, TP: 2},
    "latent attention, layer norms and biases": {**MLA, "normalization": "LayerNorm", "add_bias_linear": True, TP: 4},
    "latent attention, experts ep4": {**SHARED, **MLA, EP: 4, "moe_layer_freq": [0, 1, 1, 1]},
    "latent attention, experts tp2 ep2 pp2": {**SHARED, **MLA, **SP, TP: 2, EP: 2, PP: 2},
    "experts behind latent projections tp2": {**SHARED, **SP, "moe_latent_size": 32, TP: 2, EP: 2},
    "GLM-4.5": {**SHARED, **GLM, "add_qkv_bias": True, "qk_layernorm": True, "mtp_num_layers": 1, TP: 2, PP: 2, **SP},
    "Kimi K2": {**SHARED, **GLM, **MLA, "qk_layernorm": True, EP: 2, PP: 2},
    "short first stage": {**MODERN, "num_layers": 7, PP: 4, "num_layers_in_first_pipeline_stage": 1},
    "short last stage": {**MODERN, "num_layers": 7, PP: 4, "num_layers_in_last_pipeline_stage": 1},
    "short first and last stage": {
        **MODERN, "num_layers": 8, PP: 4,
        "num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 3,
    },
    "two uneven stages": {
        **MODERN, "num_layers": 5, PP: 2,
        "num_layers_in_first_pipeline_stage": 2, "num_layers_in_last_pipeline_stage": 3,
    },
    "short first stage vp2": {
        **MOE, "num_layers": 10, PP: 3, VP: 2, "num_layers_in_first_pipeline_stage": 2,
        "moe_layer_freq": [0, 0, 0, 1, 1, 1, 1, 0, 1, 0],
    },
    "embedding as a layer": {
        **MODERN, "num_layers": 7, PP: 4, "account_for_embedding_in_pipeline_split": True
    },
    "embedding and loss as layers": {
        **MODERN, **TIED, "num_layers": 6, PP: 4,
        "account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True,
    },
    "embedding and loss as layers vp2": {
        **MOE, "num_layers": 6, PP: 2, VP: 2, "moe_layer_freq": [0, 1, 0, 0, 1, 1],
        "account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True,
    },
    "layout": {**MODERN, "num_layers": 5, PP: 2, "pipeline_model_parallel_layout": "Ett|tttL"},
    "layout vp2, an empty stage": {
        **MOE, "num_layers": 5, PP: 2, VP: 2, "pipeline_model_parallel_layout": "Et*2|t|tt|L",
        "moe_layer_freq": [0, 0, 1, 0, 1],
    },
    "layout by names": {
        **MODERN, "num_layers": 3, PP: 2,
        "pipeline_model_parallel_layout": [["embedding", "decoder"], ["decoder", "decoder", "loss"]],
    },
    "two tokens ahead": {**MODERN, "mtp_num_layers": 1},
    "three tokens ahead tp2": {**MODERN, **LEARNED, "mtp_num_layers": 2, TP: 2},
    "two tokens ahead pp2": {**MODERN, "mtp_num_layers": 1, PP: 2},
    "two tokens ahead pp2 vp2": {**MODERN, "mtp_num_layers": 1, PP: 2, VP: 2},
    "two tokens ahead, tied, pp2": {**MODERN, **TIED, "mtp_num_layers": 1, PP: 2},
    "one layer for three tokens": {**MODERN, "mtp_num_layers": 3, "mtp_use_repeated_layer": True},
    "two tokens ahead, experts, latent attention": {
        **SHARED, **MLA, "mtp_num_layers": 1, EP: 2, PP: 2, "moe_layer_freq": [0, 1, 1, 1]
    },
    "two tokens ahead on a stage of its own": {
        **MODERN, "num_layers": 4, PP: 4, "mtp_num_layers": 1,
        "pipeline_model_parallel_layout": "Ett|tt|m|L",
    },
}  # fmt: skip


def count(chunks: list[GPTModel]) -> int:
    return sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters())


def world_of(model: Mapping[str, object]) -> int:
    """Return the smallest number of ranks that holds the dense part and the experts."""
    tp, pp, ep = model.get(TP, 1), model.get(PP, 1), model.get(EP, 1)
    return lcm(tp * pp, ep * (model.get(ETP) or tp) * pp)


def built_ranks(model: Mapping[str, object], world: int) -> list[tuple[int, int]]:
    """Return (pipeline stage, parameters) of every rank, all built."""
    found = []
    for rank in range(world):
        with standing_in(rank, world, model) as groups:
            found.append((groups.pp.rank(), count(build(model, groups))))
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_plan_counts_what_megatron_builds_on_every_rank(name):
    model, world = LAYOUTS[name], world_of(LAYOUTS[name])
    plan = make_plan({"model": model}, world_size=world)
    ranks = built_ranks(model, world)
    assert ranks == [(stage, plan.stages[stage].rank_parameters) for stage, _ in ranks]
    assert plan.to_dict()["parameters"]["per_rank_max"] == max(number for _, number in ranks)


def alone(model: Mapping[str, object], *, keep: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the same model on one rank of each stage, or on one rank."""
    dropped = {TP, EP, ETP, "sequence_parallel"} | (set() if keep else {PP, VP, *UNEVEN})
    return {name: value for name, value in model.items() if name not in dropped}


UNEVEN = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_plan_counts_the_whole_model_and_each_stage_once(name):
    model = LAYOUTS[name]
    plan = make_plan({"model": model}, world_size=world_of(model))
    staged = built_ranks(alone(model, keep=(PP,)), model.get(PP, 1))
    assert [stage.parameters for stage in plan.stages] == [number for _, number in staged]
    assert built_ranks(alone(model), 1) == [(0, plan.parameters)]


def test_enough_layouts_are_compared():
    assert len(LAYOUTS) >= 40


MIXED = {
    **MODERN,
    "hidden_size": 32,
    "activation_func": "silu",
    "mamba_state_dim": 8,
    "mamba_head_dim": 8,
    "mamba_num_groups": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
EXPERTS = {"num_moe_experts": 4, "moe_ffn_hidden_size": 24, "moe_token_dispatcher_type": "alltoall"}
OVERLAP = {"overlap_p2p_comm": True, "batch_p2p_comm": False}
HYBRIDS: dict[str, dict[str, object]] = {
    "every layer": {**MIXED, **EXPERTS, "hybrid_layer_pattern": "MG*-E"},
    "tp2 ep2": {**MIXED, **EXPERTS, **SP, "hybrid_layer_pattern": "MG*-E", TP: 2, EP: 2},
    "output gate and norms of queries and keys": {
        **MIXED, **SP, "hybrid_layer_pattern": "G-*-", "qk_layernorm": True, "attention_output_gate": True, TP: 2
    },
    "pp2 without bars": {**MIXED, "hybrid_layer_pattern": "M-*-", PP: 2},
    "pp2 without bars, a short first stage": {
        **MIXED, "hybrid_layer_pattern": "M-*-", PP: 2, "num_layers_in_first_pipeline_stage": 1
    },
    "pp2 vp2 tied": {**MIXED, **TIED, "hybrid_layer_pattern": "M|G|*-|-", PP: 2, VP: 2, **OVERLAP},
    "two tokens ahead, pp2, tied": {**MIXED, **TIED, "hybrid_layer_pattern": "M*|-/*-/*-", PP: 2},
    "layer norms, biases, learned positions": {
        **MIXED, **LEARNED, "normalization": "LayerNorm", "add_bias_linear": True, "hybrid_layer_pattern": "M*-G/*-"
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_plan_counts_every_rank_and_stage_of_a_hybrid(name):
    model = {**HYBRIDS[name], "num_layers": len(layers_of(str(HYBRIDS[name]["hybrid_layer_pattern"])))}
    world = world_of(model)
    plan = make_plan({"model": model}, world_size=world)
    section = MambaModelConfig(**model)
    for rank in range(world):
        with standing_in(rank, world, model) as groups:
            provider = MambaModelProvider(section, layer_spec=host_hybrid_spec, device=torch.device("cpu"))
            built = count(provider.provide_chunks(groups))
            assert built == plan.stages[groups.pp.rank()].rank_parameters
    assert plan.parameters == hybrid_parameter_count(section)


CPU = torch.device("cpu")
SEES = {
    **MODERN,
    "vision_num_layers": 2,
    "vision_hidden_size": 48,
    "vision_num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "calculate_per_token_loss": True,
}
FIRST, VISION_TP = "language_rank_offset", "vision_tensor_model_parallel_size"
SEEING: dict[str, tuple[int, dict[str, object]]] = {
    "one rank": (1, SEES),
    "tp2, other widths, tied": (
        2, {**SEES, **TIED, TP: 2, "vision_ffn_hidden_size": 40, "projector_hidden_size": 36}
    ),
    "one rank each": (2, {**SEES, FIRST: 1}),
    "tp2 after two replicas": (4, {**SEES, FIRST: 2, VISION_TP: 1, TP: 2}),
    "two replicas after tp2": (4, {**SEES, FIRST: 2, VISION_TP: 2}),
}  # fmt: skip


def what_sees(section, rank):
    """Return the model chunks of this rank, and its stage in the plan."""
    if not section.has_module_layouts:
        provider = MimoModelProvider(section, layer_spec=host_block_spec, device=CPU)
        return provider.provide_chunks(), 0
    vision, language = module_ranks(section, world_size=torch.distributed.get_world_size())
    groups = ModuleGroups.open(vision=vision, language=language, backend="fake")
    modules = MimoModules(section, groups=groups, layer_spec=host_block_spec, device=CPU)
    return [modules.provide(seed=1)], int(rank >= section.language_rank_offset)


@pytest.mark.parametrize("name", SEEING)
def test_the_plan_counts_every_rank_of_a_model_that_sees(name):
    world, model = SEEING[name]
    section = MimoModelConfig(**model)
    plan = make_plan({"model": section}, world_size=world)
    for rank in range(world):
        with standing_in(rank, world, {TP: section.tensor_model_parallel_size}):
            chunks, stage = what_sees(section, rank)
            planned = plan.stages[stage]
            assert (count(chunks), 4 * count(chunks)) == (planned.rank_parameters, planned.rank_bytes.weights)
    assert plan.parameters == mimo_parameter_count(section)
    assert (plan.parameters == plan.stages[0].parameters) is (len(plan.stages) == 1)


METHODS = {
    "lora": LoRA(dim=4),
    "experts of lower rank": LoRA(dim=4, normalize_moe_lora=True),
    "canonical": CanonicalLoRA(dim=4),
    "dora of all but one": DoRA(dim=4, target_modules=[], exclude_modules=["linear_fc2"]),
    "each expert": LoRA(dim=4, share_expert_adapters=False),
}
GPTS = (
    "grouped queries tp2 pp2 vp2 sequence parallel",
    "tied pp2",
    "output gate",
    "query/key/value bias alone",
    "parallel branches with one norm",
    "experts tp2 ep4 etp2 pp2",
    "shared experts tp2 ep2 etp1",
    "experts behind latent projections tp2",
    "latent attention tp2",
    "latent attention, queries whole",
    "GLM-4.5",
    "Kimi K2",
    "three tokens ahead tp2",
    "one layer for three tokens",
    "two tokens ahead, experts, latent attention",
)
HYBRID_NAMES = ("every layer", "tp2 ep2", "output gate and norms of queries and keys")
IMAGES = ("one rank", "tp2, other widths, tied", "tp2 after two replicas")
T5 = {
    TP: 2,
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "encoder_num_layers": 2,
}


def rank_of_gpt(model, groups, rank):
    """Return the chunks of this rank, and its stage in the plan."""
    return build(model, groups), groups.pp.rank()


def rank_of_hybrid(model, groups, rank):
    section = MambaModelConfig(**model)
    provider = MambaModelProvider(section, layer_spec=host_hybrid_spec, device=torch.device("cpu"))
    return provider.provide_chunks(groups), groups.pp.rank()


def rank_of_t5(model, groups, rank):
    section = T5ModelConfig(**model)
    provider = T5ModelProvider(section, layer_spec=host_t5_spec, device=torch.device("cpu"))
    return provider.provide_chunks(groups), 0


def rank_of_image_model(model, groups, rank):
    return what_sees(MimoModelConfig(**model), rank)


GROUPED = ("experts tp2 ep4 etp2 pp2", "shared experts tp2 ep2 etp1", "experts behind latent projections tp2")
KINDS = {
    **{name: (LAYOUTS[name], rank_of_gpt) for name in GPTS},
    **{f"{name}, grouped": ({**LAYOUTS[name], "moe_grouped_gemm": True}, rank_of_gpt) for name in GROUPED},
    **{
        f"hybrid, {name}": (
            {**HYBRIDS[name], "num_layers": len(layers_of(HYBRIDS[name]["hybrid_layer_pattern"]))},
            rank_of_hybrid,
        )
        for name in HYBRID_NAMES
    },
    **{f"images, {name}": (SEEING[name][1], rank_of_image_model) for name in IMAGES},
    "T5": (T5, rank_of_t5),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_rank_has_the_planned_adapters(name):
    model, build_rank = KINDS[name]
    world = SEEING[name.removeprefix("images, ")][0] if build_rank is rank_of_image_model else world_of(model)
    for method, section in METHODS.items():
        section_class = {rank_of_image_model: MimoModelConfig, rank_of_t5: T5ModelConfig}.get(
            build_rank, dict
        )
        plan = make_plan({"model": section_class(**model), "peft": section}, world_size=world)
        for rank in range(world):
            with standing_in(rank, world, model) as groups:
                chunks, stage = build_rank(model, groups, rank)
                section.install(chunks)
                assert 4 * count(chunks) == plan.stages[stage].rank_bytes.weights, (method, rank)
