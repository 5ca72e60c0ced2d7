"""Rules on overlapping the expert-parallel all-to-all: the conditions of Megatron Core 0.19's `TransformerConfig`."""

from functools import partial

from mb_overlap.rules.conditions import (
    EP_OVERLAP,
    captured_modules,
    is_older,
    on_switch,
)
from mb_schema.rule_kinds import model_rule, section_rule
from mb_schema.rules import Rule

comm_overlap_rule = partial(section_rule, "comm_overlap")


@model_rule(
    "O09a",
    why="without expert parallelism no token leaves its rank",
    fix="Set model.expert_model_parallel_size=2 or more.",
    fails={"ep": 1},
    passes={"ep": 2},
)
def _needs_expert_parallel(ep):
    return None if (ep or 1) > 1 else f"needs expert parallelism (expert_model_parallel_size={ep})"


@model_rule(
    "O09b",
    why="a dense model has no all-to-all",
    fix="Set model.num_moe_experts.",
    fails={"num_moe_experts": None},
    passes={"num_moe_experts": 8},
)
def _needs_experts(num_moe_experts):
    return (
        None if (num_moe_experts or 0) > 1 else f"needs several experts (num_moe_experts={num_moe_experts})"
    )


@model_rule(
    "O09c",
    why="the other dispatchers gather all tokens and have no all-to-all to hide",
    fix="Set model.moe_token_dispatcher_type=alltoall.",
    fails={"moe_token_dispatcher_type": "allgather"},
    passes={"moe_token_dispatcher_type": "flex"},
)
def _supports_dispatcher(moe_token_dispatcher_type):
    if moe_token_dispatcher_type in ("alltoall", "flex"):
        return None
    return (
        f"needs the alltoall or the flex dispatcher (moe_token_dispatcher_type={moe_token_dispatcher_type})"
    )


@model_rule(
    "O09d",
    why="its schedule supports 16-bit activations only",
    fix="Set mixed_precision=bf16_mixed.",
    fails={"bf16": False, "fp16": False, "resolved": True},
    passes={"bf16": True},
)
def _needs_half_precision(bf16, fp16, *, resolved):
    if bf16 or fp16 or not resolved:
        return None
    return f"needs bfloat16 or float16 (bf16={bf16}, fp16={fp16})"


@model_rule(
    "O09e",
    why="it hangs with older releases",
    fix="Install torch 2.6 or later.",
    fails={"torch_version": "2.5.1"},
    passes={"torch_version": "2.6.0a0+34c6371d24"},
)
def _needs_torch_release(*, torch_version):
    return f"needs torch 2.6.0, not {torch_version}" if is_older(torch_version, 2, 6) else None


@model_rule(
    "O09f",
    why="the all-to-all of one model chunk is hidden under the computation of another",
    fix="Set model.virtual_pipeline_model_parallel_size.",
    fails={"pp": 2},
    passes={"vp": 2},
)
def _fits_schedule(pp, vp):
    if (pp or 1) < 2 or vp is not None:
        return None
    return f"needs virtual pipeline stages (pp={pp}, vp={vp})"


@model_rule(
    "O09g",
    why="the schedule runs the parts of a layer one by one and cannot recompute a complete layer",
    fix="Set model.recompute_granularity=selective or null.",
    fails={"recompute_granularity": "full"},
    passes={"recompute_granularity": "selective"},
)
def _supports_granularity(recompute_granularity):
    if recompute_granularity == "full":
        return "is not supported with full recomputation (recompute_granularity=full)"
    return None


@model_rule(
    "O09h",
    why="the method only applies to full recomputation",
    fix="Set model.recompute_method=null.",
    fails={"recompute_method": "uniform"},
    passes={"recompute_method": None},
)
def _supports_method(recompute_method):
    return (
        None
        if recompute_method is None
        else f"is not supported with a recomputation method (recompute_method={recompute_method})"
    )


@model_rule(
    "O09i",
    why="this number only applies to full recomputation",
    fix="Set model.recompute_num_layers=null.",
    fails={"recompute_num_layers": 1},
    passes={"recompute_num_layers": None},
)
def _has_no_recomputed_layers(recompute_num_layers):
    return (
        None
        if recompute_num_layers is None
        else f"is not supported with recompute_num_layers={recompute_num_layers}"
    )


@model_rule(
    "O09j",
    why="recomputing the experts would send their tokens again",
    fix="Remove moe from model.recompute_modules.",
    fails={"recompute_modules": ["moe"]},
    passes={"recompute_modules": ["moe_act"]},
)
def _recomputes_no_experts(recompute_modules):
    if "moe" in (recompute_modules or ()):
        return f"is not supported with recomputation of the experts (recompute_modules={recompute_modules})"
    return None


@model_rule(
    "O09k",
    why="both hide the same all-to-all",
    fix="Set model.moe_shared_expert_overlap=false.",
    fails={"moe_shared_expert_overlap": True},
    passes={"moe_shared_expert_overlap": False},
)
def _has_no_shared_expert_overlap(moe_shared_expert_overlap):
    return "is not supported with moe_shared_expert_overlap=True" if moe_shared_expert_overlap else None


@model_rule(
    "O09l",
    why="its schedule supports one such layer",
    fix="Set model.mtp_num_layers=1 or null.",
    fails={"mtp_num_layers": 2},
    passes={"mtp_num_layers": 1},
)
def _supports_mtp_layers(mtp_num_layers):
    if (mtp_num_layers or 0) > 1:
        return f"supports at most one multi-token prediction layer (mtp_num_layers={mtp_num_layers})"
    return None


@model_rule(
    "O09m",
    why="the schedule interleaves the parts of these modules with other work",
    fix="Remove moe and mlp from model.cuda_graph_modules.",
    fails={"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["moe"]},
    passes={"cuda_graph_modules": ["attn"]},
)
def _captures_no_experts(cuda_graph_impl, cuda_graph_modules):
    captured = sorted(captured_modules(cuda_graph_impl, cuda_graph_modules) & {"moe", "mlp"})
    if captured:
        return f"is not supported with CUDA graphs of {' and '.join(captured)} (cuda_graph_modules)"
    return None


CONDITIONS: tuple[Rule, ...] = (
    _needs_expert_parallel,
    _needs_experts,
    _supports_dispatcher,
    _needs_half_precision,
    _needs_torch_release,
    _fits_schedule,
    _supports_granularity,
    _supports_method,
    _has_no_recomputed_layers,
    _recomputes_no_experts,
    _has_no_shared_expert_overlap,
    _supports_mtp_layers,
    _captures_no_experts,
)


@comm_overlap_rule(
    "O08",
    why="the model's pipeline schedule must support it",
    fix=f"Use a Megatron Core release that has it, or set comm_overlap.{EP_OVERLAP}=false.",
    fails={"overlap_moe_expert_parallel_comm": True},
    passes={"model__overlap_moe_expert_parallel_comm": False},
)
def _model_lacks_field(overlap_moe_expert_parallel_comm, model__overlap_moe_expert_parallel_comm):
    if overlap_moe_expert_parallel_comm and model__overlap_moe_expert_parallel_comm is None:
        return f"needs a model with the field {EP_OVERLAP}"
    return None


SECTION_RULES: tuple[Rule, ...] = (
    _model_lacks_field,
    *on_switch(CONDITIONS, f"comm_overlap.{EP_OVERLAP}"),
)
"""Rules on the field of the `comm_overlap` section."""

MODEL_RULES: tuple[Rule, ...] = on_switch(CONDITIONS, f"model.{EP_OVERLAP}")
"""Rules on the field of the model section."""

RULES: tuple[Rule, ...] = (*SECTION_RULES, *MODEL_RULES)
"""Every rule of this file."""
