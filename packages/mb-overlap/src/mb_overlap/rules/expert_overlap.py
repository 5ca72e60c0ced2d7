"""Rules on overlapping the expert-parallel all-to-all: the conditions of Megatron Core 0.19's `TransformerConfig`."""

from mb_overlap.rules.conditions import (
    CUDA_GRAPH_FIELDS,
    EP_OVERLAP,
    captured_modules,
    is_older,
    on_switch,
)
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule


def _needs_expert_parallel(ep: int | None) -> str | None:
    return None if (ep or 1) > 1 else f"needs expert parallelism (expert_model_parallel_size={ep})"


def _needs_experts(experts: int | None) -> str | None:
    return None if (experts or 0) > 1 else f"needs several experts (num_moe_experts={experts})"


def _supports_dispatcher(kind: str | None) -> str | None:
    if kind in ("alltoall", "flex"):
        return None
    return f"needs the alltoall or the flex dispatcher (moe_token_dispatcher_type={kind})"


def _needs_half_precision(bf16: bool | None, fp16: bool | None, resolved: bool) -> str | None:
    if bf16 or fp16 or not resolved:
        return None
    return f"needs bfloat16 or float16 (bf16={bf16}, fp16={fp16})"


def _needs_torch_release(version: str) -> str | None:
    return f"needs torch 2.6.0, not {version}" if is_older(version, 2, 6) else None


def _fits_schedule(pp: int | None, vp: int | None) -> str | None:
    if (pp or 1) < 2 or vp is not None:
        return None
    return f"needs virtual pipeline stages (pp={pp}, vp={vp})"


def _supports_granularity(granularity: str | None) -> str | None:
    if granularity == "full":
        return "is not supported with full recomputation (recompute_granularity=full)"
    return None


def _supports_method(method: str | None) -> str | None:
    return (
        None
        if method is None
        else f"is not supported with a recomputation method (recompute_method={method})"
    )


def _has_no_recomputed_layers(layers: int | None) -> str | None:
    return None if layers is None else f"is not supported with recompute_num_layers={layers}"


def _recomputes_no_experts(modules: list[str] | None) -> str | None:
    if "moe" in (modules or ()):
        return f"is not supported with recomputation of the experts (recompute_modules={modules})"
    return None


def _has_no_shared_expert_overlap(overlap: bool | None) -> str | None:
    return "is not supported with moe_shared_expert_overlap=True" if overlap else None


def _supports_mtp_layers(layers: int | None) -> str | None:
    if (layers or 0) > 1:
        return f"supports at most one multi-token prediction layer (mtp_num_layers={layers})"
    return None


def _captures_no_experts(impl: object, modules: object) -> str | None:
    captured = sorted(captured_modules(impl, modules) & {"moe", "mlp"})
    if captured:
        return f"is not supported with CUDA graphs of {' and '.join(captured)} (cuda_graph_modules)"
    return None


CONDITIONS: tuple[Rule, ...] = (
    rule(
        "O09a", "model.expert_model_parallel_size", _needs_expert_parallel,
        why="without expert parallelism no token leaves its rank",
        fix="Set model.expert_model_parallel_size=2 or more.",
        fails=(1,), passes=(2,),
    ),
    rule(
        "O09b", "model.num_moe_experts", _needs_experts,
        why="a dense model has no all-to-all",
        fix="Set model.num_moe_experts.",
        fails=(None,), passes=(8,),
    ),
    rule(
        "O09c", "model.moe_token_dispatcher_type", _supports_dispatcher,
        why="the other dispatchers gather all tokens and have no all-to-all to hide",
        fix="Set model.moe_token_dispatcher_type=alltoall.",
        fails=("allgather",), passes=("flex",),
    ),
    rule(
        "O09d", ("model.bf16", "model.fp16", "facts.resolved"), _needs_half_precision,
        why="its schedule supports 16-bit activations only",
        fix="Set mixed_precision=bf16_mixed.",
        fails=(False, False, True), passes=(True, False, True),
    ),
    rule(
        "O09e", "facts.torch_version", _needs_torch_release,
        why="it hangs with older releases",
        fix="Install torch 2.6 or later.",
        fails=("2.5.1",), passes=("2.6.0a0+34c6371d24",),
    ),
    rule(
        "O09f", ("model.pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size"), _fits_schedule,
        why="the all-to-all of one model chunk is hidden under the computation of another",
        fix="Set model.virtual_pipeline_model_parallel_size.",
        fails=(2, None), passes=(2, 2),
    ),
    rule(
        "O09g", "model.recompute_granularity", _supports_granularity,
        why="the schedule runs the parts of a layer one by one and cannot recompute a complete layer",
        fix="Set model.recompute_granularity=selective or null.",
        fails=("full",), passes=("selective",),
    ),
    rule(
        "O09h", "model.recompute_method", _supports_method,
        why="the method only applies to full recomputation",
        fix="Set model.recompute_method=null.",
        fails=("uniform",), passes=(None,),
    ),
    rule(
        "O09i", "model.recompute_num_layers", _has_no_recomputed_layers,
        why="this number only applies to full recomputation",
        fix="Set model.recompute_num_layers=null.",
        fails=(1,), passes=(None,),
    ),
    rule(
        "O09j", "model.recompute_modules", _recomputes_no_experts,
        why="recomputing the experts would send their tokens again",
        fix="Remove moe from model.recompute_modules.",
        fails=(["moe"],), passes=(["moe_act"],),
    ),
    rule(
        "O09k", "model.moe_shared_expert_overlap", _has_no_shared_expert_overlap,
        why="both hide the same all-to-all",
        fix="Set model.moe_shared_expert_overlap=false.",
        fails=(True,), passes=(False,),
    ),
    rule(
        "O09l", "model.mtp_num_layers", _supports_mtp_layers,
        why="its schedule supports one such layer",
        fix="Set model.mtp_num_layers=1 or null.",
        fails=(2,), passes=(1,),
    ),
    rule(
        "O09m", CUDA_GRAPH_FIELDS, _captures_no_experts,
        why="the schedule interleaves the parts of these modules with other work",
        fix="Remove moe and mlp from model.cuda_graph_modules.",
        fails=("transformer_engine", ["moe"]), passes=("transformer_engine", ["attn"]),
    ),
)  # fmt: skip


def _model_has_field(requested: bool | None, switch: bool | None) -> str | None:
    return f"needs a model with the field {EP_OVERLAP}" if requested and switch is None else None


FIELD_EXISTS = rule(
    "O08",
    (f"comm_overlap.{EP_OVERLAP}", f"model.{EP_OVERLAP}"),
    _model_has_field,
    why="the model's pipeline schedule must support it",
    fix=f"Use a Megatron Core release that has it, or set comm_overlap.{EP_OVERLAP}=false.",
    fails=(True, None),
    passes=(True, False),
)

SECTION_RULES: tuple[Rule, ...] = (
    FIELD_EXISTS,
    *on_switch(CONDITIONS, f"comm_overlap.{EP_OVERLAP}"),
)
"""Rules on the field of the `comm_overlap` section."""

MODEL_RULES: tuple[Rule, ...] = on_switch(CONDITIONS, f"model.{EP_OVERLAP}")
"""Rules on the field of the model section."""

RULES: tuple[Rule, ...] = (*SECTION_RULES, *MODEL_RULES)
"""Every rule of this file."""
