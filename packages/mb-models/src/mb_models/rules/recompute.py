"""Rules on recomputation and offloading of activations."""

from mb_schema.rule_kinds import SET, excludes, model_rule, other_than, requires
from mb_schema.rules import Rule, rules_in

RECOMPUTABLE = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts")
"""Modules of any layer that can be recomputed."""


@model_rule(
    "K02",
    why="Megatron Core identifies these modules by name",
    fix="Use names from the list.",
    fails={"recompute_modules": ["mla_up_proj"], "recompute_granularity": "selective", "transformer": {}},
    passes={"recompute_modules": ["mlp", "core_attn"]},
)
def _modules_not_recomputable(recompute_modules, recompute_granularity, multi_latent_attention, transformer):
    if recompute_granularity != "selective":
        return None
    delta_net = transformer.get("experimental_attention_variant") == "gated_delta_net"
    supported: tuple[str, ...] = RECOMPUTABLE
    if multi_latent_attention:
        supported += ("mla_up_proj",)
    if delta_net:
        supported += ("gdn_norm_out",)
    wrong = [name for name in recompute_modules or () if name not in supported]
    return f"cannot recompute {', '.join(wrong)}, only {', '.join(supported)}" if wrong else None


@model_rule(
    "K03",
    why="only grouped experts can recompute their activation separately",
    fix="Set moe_grouped_gemm=true, or remove moe_act.",
    fails={"recompute_modules": ["moe_act"], "recompute_granularity": "selective"},
    passes={"moe_grouped_gemm": True},
)
def _moe_act_without_grouped_gemm(recompute_modules, recompute_granularity, moe_grouped_gemm):
    if recompute_granularity != "selective" or "moe_act" not in (recompute_modules or ()) or moe_grouped_gemm:
        return None
    return "moe_act needs moe_grouped_gemm"


@model_rule(
    "K04",
    why="they run in parts while tokens are exchanged",
    fix="Set moe_shared_expert_overlap=false, or remove shared_experts.",
    fails={
        "recompute_modules": ["shared_experts"],
        "recompute_granularity": "selective",
        "moe_shared_expert_overlap": True,
        "moe_shared_expert_intermediate_size": 64,
    },
    passes={"moe_shared_expert_overlap": False},
)
def _shared_experts_recomputed_and_overlapped(
    recompute_modules, recompute_granularity, moe_shared_expert_overlap, moe_shared_expert_intermediate_size
):
    if (
        recompute_granularity != "selective"
        or "shared_experts" not in (recompute_modules or ())
        or not moe_shared_expert_overlap
        or moe_shared_expert_intermediate_size is None
    ):
        return None
    return "shared_experts is incompatible with moe_shared_expert_overlap"


@model_rule(
    "K05",
    why="recomputation would enter its values into the history of the scales a second time",
    fix="Use another fp8_recipe, or remove these modules.",
    fails={
        "recompute_modules": ["layernorm"],
        "recompute_granularity": "selective",
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
    },
    passes={"recompute_modules": ["mlp"]},
)
def _recomputed_under_delayed_scaling(recompute_modules, recompute_granularity, fp8, fp8_recipe):
    chosen = {"moe_act", "layernorm"} & {*(recompute_modules or ())}
    if recompute_granularity != "selective" or not chosen or not fp8 or fp8_recipe != "delayed":
        return None
    return f"{', '.join(sorted(chosen))} cannot be recomputed under fp8_recipe=delayed"


@model_rule(
    "G62",
    why="recomputation frees what a norm returns, which then includes its input, the residual",
    fix="Set fused_residual_rmsnorm=false, or remove layernorm.",
    fails={
        "recompute_modules": ["layernorm"],
        "recompute_granularity": "selective",
        "fused_residual_rmsnorm": True,
    },
    passes={"fused_residual_rmsnorm": False},
)
def _recomputed_norms_return_the_residual(recompute_modules, recompute_granularity, fused_residual_rmsnorm):
    if (
        recompute_granularity != "selective"
        or "layernorm" not in (recompute_modules or ())
        or not fused_residual_rmsnorm
    ):
        return None
    return "layernorm cannot be recomputed with fused_residual_rmsnorm"


@model_rule(
    "C10",
    why="Megatron Core offloads the activations of one microbatch at a time, and pipeline stages have several",
    fix="Set model.pipeline_model_parallel_size=1 or model.cpu_offloading=false.",
    fails={"cpu_offloading": True, "cpu_offloading_num_layers": 2, "pp": 2},
    passes={"pp": 1},
)
def _offloading_with_pipeline(cpu_offloading, cpu_offloading_num_layers, pp):
    if not cpu_offloading or (pp or 1) < 2:
        return None
    return f"{cpu_offloading_num_layers} layers are offloaded under pipeline parallelism (pp={pp})"


@model_rule(
    "G61",
    why="Megatron Core recomputes each depth of multi-token prediction as a group of one layer",
    fix="Set recompute_num_layers=1, or recompute_method=block, which does not recompute the depths.",
    fails={
        "mtp_num_layers": 1,
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 2,
    },
    passes={"recompute_num_layers": 1},
)
def _depths_recomputed_in_groups(
    mtp_num_layers, recompute_granularity, recompute_method, recompute_num_layers
):
    groups = recompute_granularity == "full" and recompute_method == "uniform"
    if not mtp_num_layers or not groups or recompute_num_layers in (None, 1):
        return None
    return (
        f"{mtp_num_layers} prediction depths are recomputed with recompute_num_layers={recompute_num_layers}"
    )


@model_rule(
    "G65",
    why="recomputation leaves a rank a part of the input of the first depth, which the next one reads, too",
    fix="Set distribute_saved_activations=false.",
    fails={
        "distribute_saved_activations": True,
        "mtp_num_layers": 2,
        "recompute_granularity": "full",
        "tp": 2,
    },
    passes={"mtp_num_layers": 1},
)
def _inputs_of_depths_distributed(distribute_saved_activations, mtp_num_layers, recompute_granularity, tp):
    several = (mtp_num_layers or 0) > 1 and (tp or 1) > 1
    if not distribute_saved_activations or not several or recompute_granularity != "full":
        return None
    return f"is on with mtp_num_layers={mtp_num_layers}"


RULES: tuple[Rule, ...] = (
    excludes(
        "K01",
        {"model.recompute_num_layers": SET, "model.recompute_granularity": "selective"},
        why="selective recomputation selects modules, not layers",
        fix='Leave it unset, or set recompute_granularity to "full".',
    ),
    *rules_in(globals()),
    excludes(
        "K06",
        {
            "model.distribute_saved_activations": True,
            "model.sequence_parallel": True,
            "model.recompute_granularity": SET,
        },
        why="the inputs are already split over the tensor-parallel ranks",
        fix="Set distribute_saved_activations=false.",
        fails={"model.recompute_granularity": "selective"},
    ),
    excludes(
        "V148",
        {
            "model.fine_grained_activation_offloading": True,
            "model.transformer_impl": other_than(None, "transformer_engine"),
        },
        why="only the layers of Transformer Engine support fine-grained offloading",
        fix="Set model.transformer_impl=transformer_engine, or model.fine_grained_activation_offloading=false.",
        fails={"model.transformer_impl": "local"},
    ),
    requires(
        "G13",
        {"model.recompute_granularity": "full"},
        {"model.recompute_method": SET, "model.recompute_num_layers": SET},
        why="Megatron needs the layers to recompute, and their number per group",
        fix='Set recompute_method to "uniform" or "block", and recompute_num_layers.',
        passes={"model.recompute_method": "uniform", "model.recompute_num_layers": 1},
    ),
)
