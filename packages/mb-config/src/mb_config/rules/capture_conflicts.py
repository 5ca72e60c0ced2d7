"""Rules on modules that are captured in CUDA graphs, recomputed or offloaded; numbered as CloudAI's constraints."""

from collections.abc import Iterable
from typing import Any

from mb_config.megatron_defaults import plain_value
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

_OFFLOAD = ("model.cpu_offloading", "model.cpu_offloading_num_layers", "model.pipeline_model_parallel_size")
_OFFLOAD_GRAPH = ("model.cpu_offloading", "model.cuda_graph_impl")
_SCOPES = ("model.cuda_graph_modules", "model.cuda_graph_scope", "model.cuda_graph_impl")
_RECOMPUTE = (*_SCOPES, "model.recompute_granularity", "model.recompute_modules")


def _scopes(modules: Any, scope: Any, impl: object) -> set[str]:
    found: set[str] = set()
    for value in (modules, scope) if impl in ("local", "transformer_engine") else ():
        parts: Iterable[object] = (
            value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
        )
        found |= {str(plain_value(part)).strip().lower() for part in parts}
    return found


def _offload_stages(offloading: bool | None, layers: int | None, pp: int | None) -> str | None:
    if not offloading or (pp or 1) < 2:
        return None
    return f"{layers} layers are offloaded under pipeline parallelism (pp={pp})"


def _offload_graphs(offloading: bool | None, impl: str | None) -> str | None:
    if not offloading or impl in (None, "none", "full_iteration"):
        return None
    return f"is not supported with CUDA graphs (cuda_graph_impl={impl})"


def _router(modules: object, scope: object, impl: object) -> str | None:
    return (
        "contain both moe and moe_router" if {"moe", "moe_router"} <= _scopes(modules, scope, impl) else None
    )


def _preprocess(modules: object, scope: object, impl: object) -> str | None:
    found = _scopes(modules, scope, impl)
    if impl != "transformer_engine" or "moe_preprocess" not in found or "moe_router" in found:
        return None
    return "contain moe_preprocess without moe_router"


def _recompute(
    modules: object, scope: object, impl: object, granularity: str | None, recomputed: list[str] | None
) -> str | None:
    if impl != "transformer_engine" or granularity != "selective" or "moe" not in (recomputed or ()):
        return None
    if "moe_router" not in _scopes(modules, scope, impl):
        return None
    return "contain moe_router, and moe is recomputed"


RULES: tuple[Rule, ...] = (
    rule(
        "C10",
        _OFFLOAD,
        _offload_stages,
        why="Megatron Core offloads the activations of one microbatch at a time, and pipeline stages have several",
        fix="Set model.pipeline_model_parallel_size=1 or model.cpu_offloading=false.",
        fails=(True, 2, 2),
        passes=(True, 2, 1),
    ),
    rule(
        "C12",
        _OFFLOAD_GRAPH,
        _offload_graphs,
        why="a captured layer cannot wait for the host",
        fix="Set model.cuda_graph_impl=none or model.cpu_offloading=false.",
        fails=(True, "transformer_engine"),
        passes=(True, "none"),
    ),
    rule(
        "C15",
        _SCOPES,
        _router,
        why="the graph of the expert layer includes its router",
        fix="Remove one of them from model.cuda_graph_modules.",
        fails=(["moe", "moe_router"], None, "transformer_engine"),
        passes=(["moe_router"], None, "transformer_engine"),
    ),
    rule(
        "C16",
        _SCOPES,
        _preprocess,
        why="the preprocessing reads the result of the router in the same graph",
        fix="Add moe_router to model.cuda_graph_modules, or remove moe_preprocess.",
        fails=(["moe_preprocess"], None, "transformer_engine"),
        passes=(["moe_preprocess", "moe_router"], None, "transformer_engine"),
    ),
    rule(
        "C17",
        _RECOMPUTE,
        _recompute,
        why="recomputing the experts would run the captured router outside of its graph",
        fix="Remove moe_router from model.cuda_graph_modules, or moe from model.recompute_modules.",
        fails=(["moe_router"], None, "transformer_engine", "selective", ["moe"]),
        passes=(["moe_router"], None, "transformer_engine", "selective", ["moe_act"]),
    ),
)
"""Combinations that Megatron Core 0.19 rejects."""
