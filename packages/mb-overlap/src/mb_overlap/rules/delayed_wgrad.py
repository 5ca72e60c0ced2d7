"""Rules on delayed weight gradients, which increase the overlap of the expert-parallel all-to-all.

The conditions match Megatron Core 0.19 and its command line.
"""

from mb_overlap.rules.conditions import (
    CUDA_GRAPH_FIELDS,
    DELAY_WGRAD,
    EP_OVERLAP,
    captured_modules,
    if_requested,
    is_older,
    on_switch,
)
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

_VERSION = "facts.transformer_engine_version"
_SHARED = ("model.moe_shared_expert_intermediate_size", "model.moe_shared_expert_overlap")
_REQUEST = (f"comm_overlap.{DELAY_WGRAD}", f"comm_overlap.{EP_OVERLAP}", f"model.{EP_OVERLAP}")
_MODEL = (f"model.{DELAY_WGRAD}", f"model.{EP_OVERLAP}", "facts.resolved")


def _needs_requested_overlap(requested: bool | None, switch: bool | None) -> str | None:
    return None if requested or switch else f"needs {EP_OVERLAP}, which is off"


def _needs_model_overlap(switch: bool | None, resolved: bool) -> str | None:
    return f"needs {EP_OVERLAP}, which is off" if resolved and not switch else None


def _delayed_in_graph(
    impl: object, modules: object, shared: object, shared_overlap: object
) -> frozenset[str]:
    routers = {"moe_router"} if shared and not shared_overlap else set()
    return captured_modules(impl, modules) & ({"attn"} | routers)


def _needs_engine_layers(impl: str | None) -> str | None:
    if impl in (None, "transformer_engine"):
        return None
    return f"needs Transformer Engine's layers (transformer_impl={impl})"


def _needs_engine_release(version: str) -> str | None:
    return f"needs Transformer Engine 2.7.0, not {version}" if is_older(version, 2, 7) else None


def _supports_overlapped_reduction(reduced: bool | None, version: str, resolved: bool) -> str | None:
    if not (resolved and reduced and is_older(version, 2, 8)):
        return None
    return f"with overlap_grad_reduce needs Transformer Engine 2.8.0, not {version}"


def _supports_graphs(impl: object, modules: object, version: str) -> str | None:
    if not captured_modules(impl, modules) or not is_older(version, 2, 10):
        return None
    return f"with CUDA graphs needs Transformer Engine 2.10.0, not {version}"


def _graphs_need_engine_release(
    impl: object, modules: object, shared: object, overlap: object, version: str
) -> str | None:
    delayed = sorted(_delayed_in_graph(impl, modules, shared, overlap))
    if not delayed or not is_older(version, 2, 12):
        return None
    return f"with CUDA graphs of {' and '.join(delayed)} needs Transformer Engine 2.12.0, not {version}"


def _graphs_need_fusion(
    impl: object, modules: object, shared: object, overlap: object, fusion: bool | None
) -> str | None:
    delayed = sorted(_delayed_in_graph(impl, modules, shared, overlap))
    if not delayed or fusion:
        return None
    return f"with CUDA graphs of {' and '.join(delayed)} needs gradient_accumulation_fusion"


def _graphs_need_no_bias(impl: object, modules: object, linear: bool | None, qkv: bool | None) -> str | None:
    if "attn" not in captured_modules(impl, modules) or not (linear or qkv):
        return None
    return f"with CUDA graphs of attn takes no bias (add_bias_linear={linear}, add_qkv_bias={qkv})"


_NEWER = "older releases do not compute the delayed gradients there"
CONDITIONS: tuple[Rule, ...] = (
    rule(
        "O10b", "model.transformer_impl", _needs_engine_layers,
        why="Megatron's local layers compute weight gradients immediately",
        fix="Set model.transformer_impl=transformer_engine.",
        fails=("local",), passes=("transformer_engine",),
    ),
    rule(
        "O10c", _VERSION, _needs_engine_release,
        why=_NEWER, fix="Install transformer-engine[pytorch] 2.7 or later.",
        fails=("2.6.0",), passes=("2.7.0",),
    ),
    rule(
        "O10d", ("ddp.overlap_grad_reduce", _VERSION, "facts.resolved"), _supports_overlapped_reduction,
        why="older releases do not notify DDP when a delayed gradient is ready",
        fix="Install transformer-engine[pytorch] 2.8 or later, or set ddp.overlap_grad_reduce=false.",
        fails=(True, "2.7.0", True), passes=(True, "2.8.0", True),
    ),
    rule(
        "O10e", (*CUDA_GRAPH_FIELDS, _VERSION), _supports_graphs,
        why=_NEWER, fix="Install transformer-engine[pytorch] 2.10 or later.",
        fails=("transformer_engine", ["mamba"], "2.9.0"), passes=("transformer_engine", ["mamba"], "2.10.0"),
    ),
    rule(
        "O10f", (*CUDA_GRAPH_FIELDS, *_SHARED, _VERSION), _graphs_need_engine_release,
        why=_NEWER, fix="Install transformer-engine[pytorch] 2.12 or later.",
        fails=("transformer_engine", ["attn"], None, False, "2.11.0"),
        passes=("transformer_engine", ["moe_router"], 64, True, "2.11.0"),
    ),
    rule(
        "O10g", (*CUDA_GRAPH_FIELDS, *_SHARED, "model.gradient_accumulation_fusion"), _graphs_need_fusion,
        why="a CUDA graph needs gradients at fixed addresses, and only fused accumulation keeps them there",
        fix="Set model.gradient_accumulation_fusion=true.",
        fails=("transformer_engine", ["moe_router"], 64, False, False),
        passes=("transformer_engine", ["moe_router"], 64, False, True),
    ),
    rule(
        "O10h", (*CUDA_GRAPH_FIELDS, "model.add_bias_linear", "model.add_qkv_bias"), _graphs_need_no_bias,
        why="Megatron Core cannot capture a bias together with a delayed gradient",
        fix="Set model.add_bias_linear=false and model.add_qkv_bias=false.",
        fails=("transformer_engine", ["attn"], True, False), passes=("transformer_engine", ["attn"], False, False),
    ),
)  # fmt: skip

_PURPOSE = "delayed weight gradients only serve to hide more of the expert-parallel all-to-all"

REQUESTED_EP_OVERLAP = rule(
    "O10a",
    _REQUEST,
    if_requested(_needs_requested_overlap),
    why=_PURPOSE,
    fix=f"Set comm_overlap.{EP_OVERLAP}=true, or comm_overlap.{DELAY_WGRAD}=false.",
    fails=(True, None, False),
    passes=(True, True, False),
)

MODEL_EP_OVERLAP = rule(
    "O10aM",
    _MODEL,
    if_requested(_needs_model_overlap),
    why=_PURPOSE,
    fix=f"Set model.{EP_OVERLAP}=true, or model.{DELAY_WGRAD}=false.",
    fails=(True, False, True),
    passes=(True, True, True),
)

SECTION_RULES: tuple[Rule, ...] = (
    REQUESTED_EP_OVERLAP,
    *on_switch(CONDITIONS, f"comm_overlap.{DELAY_WGRAD}"),
)
"""Rules on the field of the `comm_overlap` section."""

MODEL_RULES: tuple[Rule, ...] = (
    MODEL_EP_OVERLAP,
    *on_switch(CONDITIONS, f"model.{DELAY_WGRAD}"),
)
"""Rules on the field of the model section."""

RULES: tuple[Rule, ...] = (*SECTION_RULES, *MODEL_RULES)
"""Every rule of this file."""
