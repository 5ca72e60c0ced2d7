"""Rules on recomputation and offloading of activations."""

from collections.abc import Mapping, Sequence

from mb_models.rules.model_rule import model_rule
from mb_schema.rule_kinds import SET, excludes, other_than, requires, rule, within
from mb_schema.rules import Rule

RECOMPUTABLE = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts")
"""Modules of any layer that can be recomputed."""


def _modules_not_recomputable(
    modules: Sequence[str] | None, granularity: str | None, latent: bool, extra: Mapping[str, object]
) -> str | None:
    if granularity != "selective":
        return None
    delta_net = extra.get("experimental_attention_variant") == "gated_delta_net"
    supported: tuple[str, ...] = RECOMPUTABLE
    if latent:
        supported += ("mla_up_proj",)
    if delta_net:
        supported += ("gdn_norm_out",)
    wrong = [name for name in modules or () if name not in supported]
    return f"cannot recompute {', '.join(wrong)}, only {', '.join(supported)}" if wrong else None


def _moe_act_without_grouped_gemm(
    modules: Sequence[str] | None, granularity: str | None, gemm: bool
) -> str | None:
    if granularity != "selective" or "moe_act" not in (modules or ()) or gemm:
        return None
    return "moe_act needs moe_grouped_gemm"


def _shared_experts_recomputed_and_overlapped(
    modules: Sequence[str] | None, granularity: str | None, overlap: bool, width: int | None
) -> str | None:
    if granularity != "selective" or "shared_experts" not in (modules or ()) or not overlap or width is None:
        return None
    return "shared_experts is incompatible with moe_shared_expert_overlap"


def _recomputed_under_delayed_scaling(
    modules: Sequence[str] | None, granularity: str | None, fp8: str | None, recipe: str | None
) -> str | None:
    chosen = {"moe_act", "layernorm"} & {*(modules or ())}
    if granularity != "selective" or not chosen or not fp8 or recipe != "delayed":
        return None
    return f"{', '.join(sorted(chosen))} cannot be recomputed under fp8_recipe=delayed"


_RECOMPUTE = ("recompute_modules", "recompute_granularity")


def _offloading_with_pipeline(offloading: bool | None, layers: int | None, pp: int | None) -> str | None:
    if not offloading or (pp or 1) < 2:
        return None
    return f"{layers} layers are offloaded under pipeline parallelism (pp={pp})"


RULES: tuple[Rule, ...] = (
    excludes(
        "K01",
        {"model.recompute_num_layers": SET, "model.recompute_granularity": "selective"},
        why="selective recomputation selects modules, not layers",
        fix='Leave it unset, or set recompute_granularity to "full".',
        fails=(1, "selective"),
        passes=(None, "selective"),
    ),
    model_rule(
        "K02",
        (*_RECOMPUTE, "multi_latent_attention", "transformer"),
        _modules_not_recomputable,
        why="Megatron Core identifies these modules by name",
        fix="Use names from the list.",
        fails=(["mla_up_proj"], "selective", False, {}),
        passes=(["mlp", "core_attn"], "selective", False, {}),
    ),
    model_rule(
        "K03",
        (*_RECOMPUTE, "moe_grouped_gemm"),
        _moe_act_without_grouped_gemm,
        why="only grouped experts can recompute their activation separately",
        fix="Set moe_grouped_gemm=true, or remove moe_act.",
        fails=(["moe_act"], "selective", False),
        passes=(["moe_act"], "selective", True),
    ),
    model_rule(
        "K04",
        (*_RECOMPUTE, "moe_shared_expert_overlap", "moe_shared_expert_intermediate_size"),
        _shared_experts_recomputed_and_overlapped,
        why="they run in parts while tokens are exchanged",
        fix="Set moe_shared_expert_overlap=false, or remove shared_experts.",
        fails=(["shared_experts"], "selective", True, 64),
        passes=(["shared_experts"], "selective", False, 64),
    ),
    model_rule(
        "K05",
        (*_RECOMPUTE, "fp8", "fp8_recipe"),
        _recomputed_under_delayed_scaling,
        why="recomputation would enter its values into the history of the scales a second time",
        fix="Use another fp8_recipe, or remove these modules.",
        fails=(["layernorm"], "selective", "hybrid", "delayed"),
        passes=(["mlp"], "selective", "hybrid", "delayed"),
    ),
    excludes(
        "K06",
        {
            "model.distribute_saved_activations": True,
            "model.sequence_parallel": True,
            "model.recompute_granularity": SET,
        },
        why="the inputs are already split over the tensor-parallel ranks",
        fix="Set distribute_saved_activations=false.",
        fails=(True, True, "selective"),
        passes=(False, True, "selective"),
    ),
    excludes(
        "V148",
        {
            "model.fine_grained_activation_offloading": True,
            "model.transformer_impl": other_than(None, "transformer_engine"),
        },
        why="only the layers of Transformer Engine support fine-grained offloading",
        fix="Set model.transformer_impl=transformer_engine, or model.fine_grained_activation_offloading=false.",
        fails=(True, "local"),
        passes=(True, "transformer_engine"),
    ),
    rule(
        "C10",
        within("model", "cpu_offloading cpu_offloading_num_layers pipeline_model_parallel_size"),
        _offloading_with_pipeline,
        why="Megatron Core offloads the activations of one microbatch at a time, and pipeline stages have several",
        fix="Set model.pipeline_model_parallel_size=1 or model.cpu_offloading=false.",
        fails=(True, 2, 2),
        passes=(True, 2, 1),
    ),
    requires(
        "G13",
        {"model.recompute_granularity": "full"},
        {"model.recompute_method": SET, "model.recompute_num_layers": SET},
        why="Megatron needs the layers to recompute, and their number per group",
        fix='Set recompute_method to "uniform" or "block", and recompute_num_layers.',
        fails=("full", None, 1),
        passes=("full", "uniform", 1),
    ),
)
