"""Rules on CUDA graphs: Megatron Core's own conditions, and settings that cannot be captured."""

from collections.abc import Mapping, Sequence

from mb_models.rules.model_rule import model_rule
from mb_schema.rules import Rule

FULL = "full_iteration"
"""A graph of the complete iteration: an implementation, and the former name of a module that selects it."""


def _graphed(impl: str, modules: str | Sequence[str]) -> set[str]:
    """Return the modules that are captured one by one."""
    if impl not in ("local", "transformer_engine"):
        return set()
    named = modules.split(",") if isinstance(modules, str) else modules
    return set() if FULL in named else {name for name in named if name not in ("", "full")}


def _expert_graphs(modules: str | Sequence[str], impl: str, experts: int | None) -> str | None:
    chosen = _graphed(impl, modules) & {"moe", "moe_router"}
    if not chosen:
        return None
    if (experts or 0) <= 1:
        return f"{', '.join(sorted(chosen))} cannot be captured in a model without experts"
    return "cannot capture both moe and moe_router" if len(chosen) == 2 else None


def _dispatch_graph(modules: str | Sequence[str], impl: str) -> str | None:
    chosen = _graphed(impl, modules)
    alone = impl == "transformer_engine" and "moe_preprocess" in chosen and "moe_router" not in chosen
    return "moe_preprocess is captured only together with moe_router" if alone else None


def _dense_mlp_graph(
    modules: str | Sequence[str], impl: str, experts: int | None, freq: int | Sequence[int]
) -> str | None:
    everywhere = freq == 1 or (not isinstance(freq, int) and 0 not in freq)
    if (experts or 0) <= 1 or not everywhere or "mlp" not in _graphed(impl, modules):
        return None
    return "mlp cannot be captured if every layer has experts"


def _token_dropping_graph(
    modules: str | Sequence[str], impl: str, experts: int | None, factor: float | None, pad: bool
) -> str | None:
    fixed = factor is not None and pad
    if (experts or 0) <= 1 or fixed or "moe" not in _graphed(impl, modules):
        return None
    return "moe is captured only with moe_expert_capacity_factor and moe_pad_expert_input_to_capacity"


def _synchronizing_dispatch(
    modules: str | Sequence[str], impl: str, experts: int | None, factor: float | None, pad: bool, kind: str
) -> str | None:
    waits = factor is not None and not pad and kind == "alltoall"
    if (experts or 0) <= 1 or not waits or "moe_preprocess" not in _graphed(impl, modules):
        return None
    return "moe_preprocess cannot be captured with a capacity factor and without padding"


def _full_recompute_graph(granularity: str | None, impl: str, modules: str | Sequence[str]) -> str | None:
    if granularity != "full" or impl in ("none", FULL) or FULL in modules:
        return None
    return f"is incompatible with cuda_graph_impl={impl}"


def _graph_inside_recompute(
    again: Sequence[str] | None, granularity: str | None, impl: str, modules: str | Sequence[str]
) -> str | None:
    if granularity != "selective" or impl != "transformer_engine" or "moe" not in (again or ()):
        return None
    return "moe contains the captured moe_router" if "moe_router" in _graphed(impl, modules) else None


def _dropout_in_graph(
    again: Sequence[str] | None,
    granularity: str | None,
    impl: str,
    modules: str | Sequence[str],
    attention: float,
    hidden: float,
) -> str | None:
    if granularity != "selective" or impl == "none":
        return None
    captured = _graphed(impl, modules)
    drops = {"core_attn": ("attn", attention), "mlp": ("mlp", hidden), "moe": ("moe", hidden)}
    for name in ["core_attn"] if again is None else again:
        part, dropout = drops.get(name, ("", 0.0))
        if dropout and (not captured or part in captured):
            return f"{name} repeats its dropout of {dropout} inside a captured graph"
    return None


def _experts_in_one_graph(
    impl: str,
    modules: str | Sequence[str],
    experts: int | None,
    dispatcher: str,
    factor: float | None,
    pad: bool,
    extra: Mapping[str, object],
) -> str | None:
    full_iteration = impl == FULL or (impl == "local" and FULL in modules)
    fixed = dispatcher == "alltoall" and factor is not None and pad
    bounded = dispatcher == "flex" and extra.get("moe_expert_rank_capacity_factor") is not None
    if not full_iteration or not experts or fixed or bounded:
        return None
    return (
        f"captures the full iteration with num_moe_experts={experts} (moe_token_dispatcher_type={dispatcher}, "
        f"moe_expert_capacity_factor={factor}, moe_pad_expert_input_to_capacity={pad})"
    )


_RECOMPUTE = ("recompute_modules", "recompute_granularity")
_GRAPH = ("cuda_graph_modules", "cuda_graph_impl")

RULES: tuple[Rule, ...] = (
    model_rule(
        "K28",
        (*_GRAPH, "num_moe_experts"),
        _expert_graphs,
        why="one of them contains the other, and both are parts of a layer with experts",
        fix="Name only one of them, and only in a model with experts.",
        fails=(["moe_router"], "transformer_engine", None),
        passes=(["moe_router"], "transformer_engine", 4),
    ),
    model_rule(
        "K29",
        _GRAPH,
        _dispatch_graph,
        why="it prepares the dispatch of the router's selection",
        fix="Add moe_router.",
        fails=(["moe_preprocess"], "transformer_engine"),
        passes=(["attn"], "transformer_engine"),
    ),
    model_rule(
        "K30",
        (*_GRAPH, "num_moe_experts", "moe_layer_freq"),
        _dense_mlp_graph,
        why="no layer has a dense MLP",
        fix="Remove mlp.",
        fails=(["mlp"], "transformer_engine", 4, 1),
        passes=(["mlp"], "transformer_engine", 4, 2),
    ),
    model_rule(
        "K31",
        (*_GRAPH, "num_moe_experts", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
        _token_dropping_graph,
        why="the shapes in a graph are the same in every step",
        fix="Set both, or capture moe_router instead.",
        fails=(["moe"], "transformer_engine", 4, None, False),
        passes=(["moe"], "transformer_engine", 4, 1.0, True),
    ),
    model_rule(
        "K32",
        (
            *_GRAPH,
            "num_moe_experts",
            "moe_expert_capacity_factor",
            "moe_pad_expert_input_to_capacity",
            "moe_token_dispatcher_type",
        ),
        _synchronizing_dispatch,
        why="the dispatch synchronises with the host for the numbers of tokens",
        fix="Remove moe_preprocess, or set moe_pad_expert_input_to_capacity=true.",
        fails=(["moe_router", "moe_preprocess"], "transformer_engine", 4, 1.0, False, "alltoall"),
        passes=(["moe_router", "moe_preprocess"], "transformer_engine", 4, 1.0, True, "alltoall"),
    ),
    model_rule(
        "K33",
        ("recompute_granularity", "cuda_graph_impl", "cuda_graph_modules"),
        _full_recompute_graph,
        why="complete layers are recomputed outside of their graphs",
        fix='Set cuda_graph_impl to "full_iteration" or "none", or recompute_granularity to "selective".',
        fails=("full", "transformer_engine", "full"),
        passes=("full", "none", "full"),
    ),
    model_rule(
        "K34",
        (*_RECOMPUTE, "cuda_graph_impl", "cuda_graph_modules"),
        _graph_inside_recompute,
        why="a graph cannot be a part of a recomputed module",
        fix="Remove moe from recompute_modules, or moe_router from cuda_graph_modules.",
        fails=(["moe"], "selective", "transformer_engine", ["attn", "moe_router"]),
        passes=(["layernorm"], "selective", "transformer_engine", ["attn"]),
    ),
    model_rule(
        "K35",
        (*_RECOMPUTE, "cuda_graph_impl", "cuda_graph_modules", "attention_dropout", "hidden_dropout"),
        _dropout_in_graph,
        why="random numbers inside a graph cannot be reproduced for recomputation",
        fix="Set the dropout to 0, or remove the module from recompute_modules.",
        fails=(None, "selective", "full_iteration", "full", 0.1, 0.0),
        passes=(None, "selective", "full_iteration", "full", 0.0, 0.1),
    ),
    model_rule(
        "G37",
        (
            *reversed(_GRAPH),
            "num_moe_experts",
            "moe_token_dispatcher_type",
            "moe_expert_capacity_factor",
            "moe_pad_expert_input_to_capacity",
            "transformer",
        ),
        _experts_in_one_graph,
        why="the host reads the number of tokens of each expert, which a graph does not support, unless it is fixed",
        fix="Set moe_token_dispatcher_type=alltoall, moe_expert_capacity_factor and "
        "moe_pad_expert_input_to_capacity=true, or cuda_graph_impl=transformer_engine with "
        "cuda_graph_modules=[attn,moe_router].",
        fails=(FULL, "full", 8, "alltoall", None, False, {}),
        passes=(FULL, "full", 8, "alltoall", 1.0, True, {}),
    ),
)
