"""Rules on the section `peft`, for a check before launch. Standard library only."""

from functools import partial

from mb_models.peft.config import CanonicalLoRA
from mb_schema.cuda_graphs import FULL_ITERATION, captures_full_iteration
from mb_schema.rule_kinds import config_rule, excludes, in_range, section_rule
from mb_schema.rules import Rule

peft_rule = partial(section_rule, "peft")


@peft_rule(
    "PE03",
    why="everything but adapters is frozen, so that nothing would be trained",
    fix="Select layers, such as linear_qkv and linear_proj, or remove peft.target_modules.",
    fails={"target_modules": []},
    passes={"target_modules": ["linear_qkv"]},
)
def _no_layers_named(target_modules, exclude_modules):
    return None if target_modules or exclude_modules else "names no layer"


@peft_rule(
    "PE05",
    why="the gradient of each factor is proportional to the other, so that both stay zero",
    fix="Set one of them to another method: A to kaiming, for example.",
    fails={"lora_A_init_method": "zero", "lora_B_init_method": "zero"},
    passes={"lora_A_init_method": "kaiming"},
)
def _both_factors_zero(lora_A_init_method, lora_B_init_method):
    return "are both zero" if lora_A_init_method == lora_B_init_method == "zero" else None


@peft_rule(
    "PE06",
    why="it multiplies the learning rate of the second factor of each adapter",
    fix="Set peft.loraplus_lr_ratio to a positive number, such as 16, or leave it out.",
    fails={"loraplus_lr_ratio": 0.0},
    passes={"loraplus_lr_ratio": 16.0},
)
def _rate_not_positive(loraplus_lr_ratio):
    return None if loraplus_lr_ratio is None or 0 < loraplus_lr_ratio < float("inf") else "is not positive"


@peft_rule(
    "PE07",
    why="it divides the rank of routed experts by the number of experts of a token",
    fix="Set peft.dim to a multiple of model.moe_router_topk, or leave out peft.normalize_moe_lora.",
    fails={"normalize_moe_lora": True, "dim": 32, "model__num_moe_experts": 8, "model__moe_router_topk": 6},
    passes={"dim": 36},
)
def _rank_of_experts(normalize_moe_lora, dim, model__num_moe_experts, model__moe_router_topk):
    if not normalize_moe_lora:
        return None
    if not model__num_moe_experts:
        return "is on for a model without experts"
    per_token = model__moe_router_topk
    return (
        f"has no whole result for dim={dim} and moe_router_topk={per_token}"
        if per_token and dim % per_token
        else None
    )


@peft_rule(
    "PE09",
    why="random numbers inside a graph cannot be reproduced for recomputation: gradients would belong to other dropout "
    "masks than the loss",
    fix="Set peft.dropout=0, or model.cuda_graph_impl=none.",
    fails={
        "dropout": 0.1,
        "model__cuda_graph_impl": FULL_ITERATION,
        "model__recompute_granularity": "selective",
        "model__recompute_modules": ["mlp"],
    },
    passes={"model__recompute_modules": ["core_attn"]},
)
def _recomputed_in_graph(
    dropout,
    model__cuda_graph_impl,
    model__cuda_graph_modules,
    model__recompute_granularity,
    model__recompute_modules,
):
    adapted = {"mlp", "moe"} & {*(model__recompute_modules or ())}
    recomputed = model__recompute_granularity == "full" or (model__recompute_granularity and adapted)
    if dropout and recomputed and captures_full_iteration(model__cuda_graph_impl, model__cuda_graph_modules):
        return f"{dropout} is repeated inside a captured graph (recompute_granularity={model__recompute_granularity})"
    return None


_FUSED = {"linear_qkv", "linear_q", "linear_k", "linear_v"}
"""Names of the fused layer of attention and of its parts in canonical LoRA."""


@config_rule(
    "PE08",
    why="ranks share query groups, so that keys and values have no rows of their own on a rank",
    fix="Use LoRA, or at most model.num_query_groups tensor-parallel ranks.",
    fails={"peft": CanonicalLoRA(), "tp": 4, "model__num_query_groups": 2},
    passes={"model__num_query_groups": 4},
)
def _canonical_with_shared_groups(
    peft, tp, model__num_query_groups, model__num_attention_heads, model__multi_latent_attention
):
    groups = model__num_query_groups or model__num_attention_heads
    if (
        not isinstance(peft, CanonicalLoRA)
        or model__multi_latent_attention
        or not groups
        or groups >= (tp or 1)
    ):
        return None
    named = {pattern.rpartition(".")[2] for pattern in peft.target_modules or peft.exclude_modules}
    adapted = bool(named & _FUSED) if peft.target_modules else not named & _FUSED
    return (
        f"is CanonicalLoRA of query, key and value with num_query_groups={groups} and tp={tp}"
        if adapted
        else None
    )


@config_rule(
    "V139a",
    why="adapters are trained on top of pretrained weights",
    fix="Set checkpoint.pretrained_checkpoint.",
    fails={"peft": {"dim": 8}},
    passes={"checkpoint__pretrained_checkpoint": "/checkpoints/base"},
)
def _adapters_without_weights(peft, checkpoint__pretrained_checkpoint):
    return None if checkpoint__pretrained_checkpoint else "is set without pretrained weights"


RULES: tuple[Rule, ...] = (
    in_range(
        "PE01",
        "peft.dim",
        1,
        why="it is the rank of the product that is added",
    ),
    in_range(
        "PE02",
        "peft.dropout",
        0,
        below=1,
        why="it is the probability of zeroing an input, and the other inputs are scaled by 1 / (1 - dropout)",
        fix="Set peft.dropout to at least 0 and below 1.",
    ),
    _no_layers_named,
    excludes(
        "PE04",
        {"peft.target_modules": True, "peft.exclude_modules": True},
        why="exclude_modules selects all other layers, and target_modules selects only its own",
        fix="Set peft.target_modules=[] to use peft.exclude_modules, or remove peft.exclude_modules.",
        fails={"peft.target_modules": ["linear_qkv"], "peft.exclude_modules": ["linear_proj"]},
    ),
    _both_factors_zero,
    _rate_not_positive,
    _rank_of_experts,
    _recomputed_in_graph,
    _canonical_with_shared_groups,
    _adapters_without_weights,
)
"""Rules on the section as written by the user; unsupported layers are rejected when the model is built."""
