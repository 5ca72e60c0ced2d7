"""CloudAI's constraints as rules on a configuration, where no other rule says the same; what says it of the others."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mb_trainer.rules import Rule

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
        found |= {str(getattr(part, "name", part)).strip().lower() for part in parts}
    return found


def _offload_stages(offloading: bool | None, layers: int | None, pp: int | None) -> str | None:
    if not offloading or (pp or 1) < 2:
        return None
    return f"{layers} layers are offloaded under pipeline parallelism (pp={pp})"


def _offload_graphs(offloading: bool | None, impl: str | None) -> str | None:
    if not offloading or impl in (None, "none", "full_iteration"):
        return None
    return f"does not go with CUDA graphs (cuda_graph_impl={impl})"


def _router(modules: object, scope: object, impl: object) -> str | None:
    return "hold both moe and moe_router" if {"moe", "moe_router"} <= _scopes(modules, scope, impl) else None


def _preprocess(modules: object, scope: object, impl: object) -> str | None:
    found = _scopes(modules, scope, impl)
    if impl != "transformer_engine" or "moe_preprocess" not in found or "moe_router" in found:
        return None
    return "hold moe_preprocess without moe_router"


def _recompute(
    modules: object, scope: object, impl: object, granularity: str | None, recomputed: list[str] | None
) -> str | None:
    if impl != "transformer_engine" or granularity != "selective" or "moe" not in (recomputed or ()):
        return None
    if "moe_router" not in _scopes(modules, scope, impl):
        return None
    return "hold moe_router, and moe is recomputed"


RULES = (
    Rule(
        id="C10",
        fields=_OFFLOAD,
        test=_offload_stages,
        why="Megatron Core moves the activations of one microbatch at a time, and stages hold several",
        fix="Set model.pipeline_model_parallel_size=1 or model.cpu_offloading=false.",
        fails=dict(zip(_OFFLOAD, (True, 2, 2), strict=True)),
        passes=dict(zip(_OFFLOAD, (True, 2, 1), strict=True)),
    ),
    Rule(
        id="C12",
        fields=_OFFLOAD_GRAPH,
        test=_offload_graphs,
        why="a captured layer cannot wait for the host",
        fix="Set model.cuda_graph_impl=none or model.cpu_offloading=false.",
        fails=dict(zip(_OFFLOAD_GRAPH, (True, "transformer_engine"), strict=True)),
        passes=dict(zip(_OFFLOAD_GRAPH, (True, "none"), strict=True)),
    ),
    Rule(
        id="C15",
        fields=_SCOPES,
        test=_router,
        why="the whole layer of experts holds its router already",
        fix="Leave one of them out of model.cuda_graph_modules.",
        fails=dict(zip(_SCOPES, (["moe", "moe_router"], None, "transformer_engine"), strict=True)),
        passes=dict(zip(_SCOPES, (["moe_router"], None, "transformer_engine"), strict=True)),
    ),
    Rule(
        id="C16",
        fields=_SCOPES,
        test=_preprocess,
        why="what is prepared there follows from the router, in the same graph",
        fix="Add moe_router to model.cuda_graph_modules, or leave moe_preprocess out.",
        fails=dict(zip(_SCOPES, (["moe_preprocess"], None, "transformer_engine"), strict=True)),
        passes=dict(
            zip(_SCOPES, (["moe_preprocess", "moe_router"], None, "transformer_engine"), strict=True)
        ),
    ),
    Rule(
        id="C17",
        fields=_RECOMPUTE,
        test=_recompute,
        why="recomputing the experts would run the captured router outside of its graph",
        fix="Take moe_router out of model.cuda_graph_modules or moe out of model.recompute_modules.",
        fails=dict(
            zip(_RECOMPUTE, (["moe_router"], None, "transformer_engine", "selective", ["moe"]), strict=True)
        ),
        passes=dict(
            zip(
                _RECOMPUTE,
                (["moe_router"], None, "transformer_engine", "selective", ["moe_act"]),
                strict=True,
            )
        ),
    ),
)
"""What Megatron Core 0.19 refuses of them, as rules on `model`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What becomes of a constraint that is no rule of its own."""

    rules: tuple[str, ...] = ()
    """Rules that say the same."""
    allowed: str = ""
    """What of it is allowed here, if anything."""


ELSEWHERE: Mapping[str, Elsewhere] = {
    "C01": Elsewhere(rules=("V030",)),
    "C02": Elsewhere(rules=("P05",)),
    "C03": Elsewhere(rules=("V030",)),
    "C04": Elsewhere(rules=("V242",)),
    "C05": Elsewhere(allowed="Megatron Core allows CUDA graphs under Megatron-FSDP."),
    "C06": Elsewhere(
        rules=("FS05",),
        allowed="Megatron Core allows context parallelism under Megatron-FSDP, but no stages.",
    ),
    "C07": Elsewhere(rules=("P09",)),
    "C08": Elsewhere(rules=("P05",)),
    "C09": Elsewhere(
        rules=("FS10",),
        allowed="Megatron Core allows several instances of the distributed optimizer without Megatron-FSDP; it is with "
        "Megatron-FSDP that this trainer takes one only.",
    ),
    "C11": Elsewhere(rules=("O09m",)),
    "C13": Elsewhere(rules=("V150",)),
    "C14": Elsewhere(rules=("V152", "V153")),
    "C18": Elsewhere(
        allowed="Any number of stages is allowed whose layout is given: the recipe deepseek_v3 brings its own in "
        "model.pipeline_model_parallel_layout."
    ),
    "C19": Elsewhere(rules=("P07",)),
    "C20": Elsewhere(rules=("O09f",)),
}
"""Number of CloudAI's to what becomes of it; the others are `RULES`."""
