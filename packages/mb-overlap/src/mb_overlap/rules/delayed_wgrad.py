"""Rules on delayed weight gradients, which increase the overlap of the expert-parallel all-to-all.

The conditions match Megatron Core 0.19 and its command line.
"""

from functools import partial

from mb_overlap.rules.conditions import (
    DELAY_WGRAD,
    EP_OVERLAP,
    captured_modules,
    is_older,
    on_switch,
)
from mb_schema.rule_kinds import ddp_rule, model_rule, section_rule
from mb_schema.rules import Rule

comm_overlap_rule = partial(section_rule, "comm_overlap")

_NEWER = "older releases do not compute the delayed gradients there"
_PURPOSE = "delayed weight gradients only serve to hide more of the expert-parallel all-to-all"


@comm_overlap_rule(
    "O10a",
    why=_PURPOSE,
    fix=f"Set comm_overlap.{EP_OVERLAP}=true, or comm_overlap.{DELAY_WGRAD}=false.",
    fails={"delay_wgrad_compute": True},
    passes={"overlap_moe_expert_parallel_comm": True},
)
def _needs_requested_overlap(
    delay_wgrad_compute, overlap_moe_expert_parallel_comm, model__overlap_moe_expert_parallel_comm
):
    if not delay_wgrad_compute or overlap_moe_expert_parallel_comm or model__overlap_moe_expert_parallel_comm:
        return None
    return f"needs {EP_OVERLAP}, which is off"


@model_rule(
    "O10aM",
    why=_PURPOSE,
    fix=f"Set model.{EP_OVERLAP}=true, or model.{DELAY_WGRAD}=false.",
    fails={"delay_wgrad_compute": True, "resolved": True},
    passes={"overlap_moe_expert_parallel_comm": True},
)
def _needs_model_overlap(delay_wgrad_compute, overlap_moe_expert_parallel_comm, *, resolved):
    off = delay_wgrad_compute and resolved and not overlap_moe_expert_parallel_comm
    return f"needs {EP_OVERLAP}, which is off" if off else None


def _delayed_in_graph(
    impl: object, modules: object, shared: object, shared_overlap: object
) -> frozenset[str]:
    routers = {"moe_router"} if shared and not shared_overlap else set()
    return captured_modules(impl, modules) & ({"attn"} | routers)


@model_rule(
    "O10b",
    why="Megatron's local layers compute weight gradients immediately",
    fix="Set model.transformer_impl=transformer_engine.",
    fails={"transformer_impl": "local"},
    passes={"transformer_impl": "transformer_engine"},
)
def _needs_engine_layers(transformer_impl):
    if transformer_impl in (None, "transformer_engine"):
        return None
    return f"needs Transformer Engine's layers (transformer_impl={transformer_impl})"


@model_rule(
    "O10c",
    why=_NEWER,
    fix="Install transformer-engine[pytorch] 2.7 or later.",
    fails={"transformer_engine_version": "2.6.0"},
    passes={"transformer_engine_version": "2.7.0"},
)
def _needs_engine_release(*, transformer_engine_version):
    if is_older(transformer_engine_version, 2, 7):
        return f"needs Transformer Engine 2.7.0, not {transformer_engine_version}"
    return None


@ddp_rule(
    "O10d",
    why="older releases do not notify DDP when a delayed gradient is ready",
    fix="Install transformer-engine[pytorch] 2.8 or later, or set ddp.overlap_grad_reduce=false.",
    fails={"overlap_grad_reduce": True, "transformer_engine_version": "2.7.0", "resolved": True},
    passes={"transformer_engine_version": "2.8.0"},
)
def _supports_overlapped_reduction(overlap_grad_reduce, *, transformer_engine_version, resolved):
    if not (resolved and overlap_grad_reduce and is_older(transformer_engine_version, 2, 8)):
        return None
    return f"with overlap_grad_reduce needs Transformer Engine 2.8.0, not {transformer_engine_version}"


@model_rule(
    "O10e",
    why=_NEWER,
    fix="Install transformer-engine[pytorch] 2.10 or later.",
    fails={
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_modules": ["mamba"],
        "transformer_engine_version": "2.9.0",
    },
    passes={"transformer_engine_version": "2.10.0"},
)
def _supports_graphs(cuda_graph_impl, cuda_graph_modules, *, transformer_engine_version):
    if not captured_modules(cuda_graph_impl, cuda_graph_modules) or not is_older(
        transformer_engine_version, 2, 10
    ):
        return None
    return f"with CUDA graphs needs Transformer Engine 2.10.0, not {transformer_engine_version}"


@model_rule(
    "O10f",
    why=_NEWER,
    fix="Install transformer-engine[pytorch] 2.12 or later.",
    fails={
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_modules": ["attn"],
        "transformer_engine_version": "2.11.0",
    },
    passes={
        "cuda_graph_modules": ["moe_router"],
        "moe_shared_expert_intermediate_size": 64,
        "moe_shared_expert_overlap": True,
    },
)
def _graphs_need_engine_release(
    cuda_graph_impl,
    cuda_graph_modules,
    moe_shared_expert_intermediate_size,
    moe_shared_expert_overlap,
    *,
    transformer_engine_version,
):
    delayed = sorted(
        _delayed_in_graph(
            cuda_graph_impl,
            cuda_graph_modules,
            moe_shared_expert_intermediate_size,
            moe_shared_expert_overlap,
        )
    )
    if not delayed or not is_older(transformer_engine_version, 2, 12):
        return None
    return (
        f"with CUDA graphs of {' and '.join(delayed)} needs Transformer Engine 2.12.0, not "
        f"{transformer_engine_version}"
    )


@model_rule(
    "O10g",
    why="a CUDA graph needs gradients at fixed addresses, and only fused accumulation keeps them there",
    fix="Set model.gradient_accumulation_fusion=true.",
    fails={
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_modules": ["moe_router"],
        "moe_shared_expert_intermediate_size": 64,
    },
    passes={"gradient_accumulation_fusion": True},
)
def _graphs_need_fusion(
    cuda_graph_impl,
    cuda_graph_modules,
    moe_shared_expert_intermediate_size,
    moe_shared_expert_overlap,
    gradient_accumulation_fusion,
):
    delayed = sorted(
        _delayed_in_graph(
            cuda_graph_impl,
            cuda_graph_modules,
            moe_shared_expert_intermediate_size,
            moe_shared_expert_overlap,
        )
    )
    if not delayed or gradient_accumulation_fusion:
        return None
    return f"with CUDA graphs of {' and '.join(delayed)} needs gradient_accumulation_fusion"


@model_rule(
    "O10h",
    why="Megatron Core cannot capture a bias together with a delayed gradient",
    fix="Set model.add_bias_linear=false and model.add_qkv_bias=false.",
    fails={
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_modules": ["attn"],
        "add_bias_linear": True,
        "add_qkv_bias": False,
    },
    passes={"add_bias_linear": False},
)
def _graphs_need_no_bias(cuda_graph_impl, cuda_graph_modules, add_bias_linear, add_qkv_bias):
    if "attn" not in captured_modules(cuda_graph_impl, cuda_graph_modules) or not (
        add_bias_linear or add_qkv_bias
    ):
        return None
    return f"with CUDA graphs of attn takes no bias (add_bias_linear={add_bias_linear}, add_qkv_bias={add_qkv_bias})"


CONDITIONS: tuple[Rule, ...] = (
    _needs_engine_layers,
    _needs_engine_release,
    _supports_overlapped_reduction,
    _supports_graphs,
    _graphs_need_engine_release,
    _graphs_need_fusion,
    _graphs_need_no_bias,
)

SECTION_RULES: tuple[Rule, ...] = (
    _needs_requested_overlap,
    *on_switch(CONDITIONS, f"comm_overlap.{DELAY_WGRAD}"),
)
"""Rules on the field of the `comm_overlap` section."""

MODEL_RULES: tuple[Rule, ...] = (
    _needs_model_overlap,
    *on_switch(CONDITIONS, f"model.{DELAY_WGRAD}"),
)
"""Rules on the field of the model section."""

RULES: tuple[Rule, ...] = (*SECTION_RULES, *MODEL_RULES)
"""Every rule of this file."""
