"""Planned parameters are those of the really built Megatron model: on every rank, on every stage, and in all.

All ranks of a layout are built one after the other in this process, under process groups that talk to nobody.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from math import lcm

import pytest
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

from mb_config import make_plan
from mb_host.layers import HostNorm, host_block_spec

TP, PP, VP, EP, ETP = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
DENSE = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "ffn_hidden_size": 96,
    "vocab_size": 256,
    "seq_length": 32,
    "position_embedding_type": "rope",
    "share_embeddings_and_output_weights": False,
    "transformer_impl": "local",
}
MODERN = {
    **DENSE,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "num_query_groups": 2,
}
MOE = {
    **MODERN,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 48,
    "moe_token_dispatcher_type": "alltoall",
}
SHARED = {**MOE, "moe_shared_expert_intermediate_size": 80, "moe_shared_expert_gate": True}
MLA = {
    **MODERN,
    "num_query_groups": 8,
    "multi_latent_attention": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 12,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 10,
    "rope_type": "rope",
}
TIED = {"share_embeddings_and_output_weights": True}
LEARNED = {"position_embedding_type": "learned_absolute"}
SP = {"sequence_parallel": True}

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


@contextmanager
def standing_in(rank: int, world: int, model: Mapping[str, object]) -> Iterator[ProcessGroupCollection]:
    """Be one rank of many in this process; its groups have the right sizes and send nothing."""
    torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=model.get(TP, 1),
            pipeline_model_parallel_size=model.get(PP, 1),
            virtual_pipeline_model_parallel_size=model.get(VP),
            expert_model_parallel_size=model.get(EP, 1),
            expert_tensor_parallel_size=model.get(ETP),
            create_gloo_process_groups=False,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        yield ProcessGroupCollection.use_mpu_process_groups()
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def build(model: Mapping[str, object], groups: ProcessGroupCollection) -> list[GPTModel]:
    """Build this rank's chunks with Megatron's own classes."""
    kind = MLATransformerConfig if model.get("multi_latent_attention") else TransformerConfig
    known = {field.name for field in fields(kind)}
    values = {name: value for name, value in model.items() if name in known}
    config = kind(**values, perform_initialization=False, pipeline_dtype=torch.float32)
    stage, stages = groups.pp.rank(), groups.pp.size()
    chunks = []
    for virtual in range(model.get(VP) or 1):
        at = virtual if model.get(VP) else None
        spec = host_block_spec(config, vp_stage=at, pp_rank=stage)
        chunks.append(
            GPTModel(
                config=config,
                transformer_layer_spec=spec,
                vocab_size=model["vocab_size"],
                max_sequence_length=model.get("max_position_embeddings") or model["seq_length"],
                pre_process=stage == 0 and virtual == 0,
                post_process=stage == stages - 1 and virtual == (model.get(VP) or 1) - 1,
                position_embedding_type=model["position_embedding_type"],
                share_embeddings_and_output_weights=model["share_embeddings_and_output_weights"],
                mtp_block_spec=mtp_spec(config, spec, vp_stage=at, pp_rank=stage),
                pg_collection=groups,
                vp_stage=at,
            )
        )
    return chunks


def mtp_spec(config: TransformerConfig, spec: object, *, vp_stage: int | None, pp_rank: int) -> object:
    """Return the layers of multi-token prediction that stand here, of the kind of the model's last layer."""
    if not config.mtp_num_layers:
        return None
    layers = spec if spec.layer_specs else host_block_spec(config, vp_stage=vp_stage, pp_rank=pp_rank - 1)
    block = get_gpt_mtp_block_spec(
        config, layers, use_transformer_engine=False, vp_stage=vp_stage, pp_rank=pp_rank
    )
    for layer in block.layer_specs if block else ():
        layer.submodules.enorm = layer.submodules.hnorm = layer.submodules.layer_norm = HostNorm
    return block


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
