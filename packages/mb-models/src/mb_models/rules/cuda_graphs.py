"""Rules on CUDA graphs: Megatron Core's own conditions, and settings that cannot be captured."""

from collections.abc import Mapping, Sequence

from mb_models.rules.model_rule import model_rule
from mb_schema.cuda_graphs import FULL_ITERATION, GRAPH_FIELDS, captures_full_iteration, module_names
from mb_schema.rule_kinds import rule, within
from mb_schema.rules import Rule


def _captured_modules(impl: str | None, modules: object) -> set[str]:
    """Return the modules that are captured one by one."""
    if impl not in ("local", "transformer_engine"):
        return set()
    named = module_names(modules)
    return set() if FULL_ITERATION in named else named


def _expert_modules_not_capturable(modules: object, impl: str, experts: int | None) -> str | None:
    chosen = _captured_modules(impl, modules) & {"moe", "moe_router"}
    if not chosen:
        return None
    if (experts or 0) <= 1:
        return f"{', '.join(sorted(chosen))} cannot be captured in a model without experts"
    return "cannot capture both moe and moe_router" if len(chosen) == 2 else None


def _preprocess_without_router(modules: object, impl: str) -> str | None:
    chosen = _captured_modules(impl, modules)
    alone = impl == "transformer_engine" and "moe_preprocess" in chosen and "moe_router" not in chosen
    return "moe_preprocess is captured only together with moe_router" if alone else None


def _mlp_without_dense_layers(
    modules: object, impl: str, experts: int | None, freq: int | Sequence[int]
) -> str | None:
    everywhere = freq == 1 or (not isinstance(freq, int) and 0 not in freq)
    if (experts or 0) <= 1 or not everywhere or "mlp" not in _captured_modules(impl, modules):
        return None
    return "mlp cannot be captured if every layer has experts"


def _experts_of_variable_size(
    modules: object, impl: str, experts: int | None, factor: float | None, pad: bool
) -> str | None:
    fixed = factor is not None and pad
    if (experts or 0) <= 1 or fixed or "moe" not in _captured_modules(impl, modules):
        return None
    return "moe is captured only with moe_expert_capacity_factor and moe_pad_expert_input_to_capacity"


def _preprocess_synchronizes(
    modules: object, impl: str, experts: int | None, factor: float | None, pad: bool, kind: str
) -> str | None:
    waits = factor is not None and not pad and kind == "alltoall"
    if (experts or 0) <= 1 or not waits or "moe_preprocess" not in _captured_modules(impl, modules):
        return None
    return "moe_preprocess cannot be captured with a capacity factor and without padding"


def _full_recompute_with_module_graphs(granularity: str | None, impl: str, modules: object) -> str | None:
    if (
        granularity != "full"
        or impl in (None, "none", FULL_ITERATION)
        or FULL_ITERATION in module_names(modules)
    ):
        return None
    return f"is incompatible with cuda_graph_impl={impl}"


def _router_captured_and_recomputed(
    recomputed: Sequence[str] | None, granularity: str | None, impl: str, modules: object
) -> str | None:
    if granularity != "selective" or impl != "transformer_engine" or "moe" not in (recomputed or ()):
        return None
    return (
        "moe contains the captured moe_router" if "moe_router" in _captured_modules(impl, modules) else None
    )


def _dropout_recomputed_in_graph(
    recomputed: Sequence[str] | None,
    granularity: str | None,
    impl: str,
    modules: object,
    attention: float,
    hidden: float,
) -> str | None:
    if granularity != "selective" or impl == "none":
        return None
    captured = _captured_modules(impl, modules)
    drops = {"core_attn": ("attn", attention), "mlp": ("mlp", hidden), "moe": ("moe", hidden)}
    for name in ["core_attn"] if recomputed is None else recomputed:
        part, dropout = drops.get(name, ("", 0.0))
        if dropout and (not captured or part in captured):
            return f"{name} repeats its dropout of {dropout} inside a captured graph"
    return None


def _experts_of_variable_size_in_full_iteration(
    impl: str,
    modules: object,
    experts: int | None,
    dispatcher: str,
    factor: float | None,
    pad: bool,
    extra: Mapping[str, object],
) -> str | None:
    full_iteration = captures_full_iteration(impl, modules)
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

IMPLEMENTATIONS = ("none", "local", "transformer_engine", "full_iteration")


MODULES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")


_LEGACY_MODULES = ("full_iteration", "full_iteration_inference")


def _unknown_implementation(implementation: str | None) -> str | None:
    if implementation is None or implementation in IMPLEMENTATIONS:
        return None
    return f"{implementation!r} is not one of {', '.join(IMPLEMENTATIONS)}"


def _modules_without_graphs(implementation: str | None, modules: object, scope: object) -> str | None:
    named = module_names(modules, scope)
    if implementation != "none" or not named:
        return None
    return f"is none, so that the modules {', '.join(sorted(named))} have no effect"


def _modules_with_full_iteration(implementation: str | None, modules: object, scope: object) -> str | None:
    named = module_names(modules, scope) - {FULL_ITERATION}
    if not named or not captures_full_iteration(implementation, modules, scope):
        return None
    return f"captures the full iteration, but the modules {', '.join(sorted(named))} are set"


def _local_graphs_by_module(
    implementation: str | None, modules: object, scope: object, inference: object
) -> str | None:
    if implementation != "local" or captures_full_iteration(implementation, modules, scope):
        return None
    trained = module_names(modules, scope)
    if not trained and str(inference).rpartition(".")[2] in ("layer", "block"):
        return None
    return (
        f"local does not capture training graphs by module ({', '.join(sorted(trained)) or 'no modules set'})"
    )


def _inference_scope_of_other_implementation(inference: object, implementation: str | None) -> str | None:
    scope = None if inference is None else str(inference).rpartition(".")[2]
    allowed = ("layer", "block") if implementation == "local" else ("none",)
    if scope is None or scope in allowed:
        return None
    return f"{scope} is not {' or '.join(allowed)}, as cuda_graph_impl={implementation or 'none'} needs"


def _scope_and_modules_both_set(scope: object, modules: object) -> str | None:
    return "is set together with cuda_graph_modules" if scope is not None and module_names(modules) else None


def _unknown_modules(implementation: str | None, modules: object, scope: object) -> str | None:
    named = module_names(modules, scope)
    wrong = sorted(named - {*MODULES, *_LEGACY_MODULES})
    if not wrong or implementation == "none":
        return None
    return f"cannot capture {', '.join(wrong)}, only {', '.join(MODULES)}"


def _te_graphs_of_local_layers(implementation: str | None, layers: str | None, cpu: bool) -> str | None:
    if implementation != "transformer_engine" or layers != "local" or cpu:
        return None
    return "is transformer_engine with transformer_impl=local"


def _offloading_with_graphs(offloading: bool | None, impl: str | None) -> str | None:
    if not offloading or impl in (None, "none", "full_iteration"):
        return None
    return f"is not supported with CUDA graphs (cuda_graph_impl={impl})"


def _router_captured_with_padding(
    impl: str | None, modules: str | Sequence[str] | None, experts: int | None, root: object
) -> str | None:
    chosen = [modules] if isinstance(modules, str) else list(modules or ())
    routed = not chosen or {"full", "moe", "moe_router", "moe_preprocess"} & {*chosen}
    if impl != "transformer_engine" or not experts or root is None or not routed:
        return None
    return f"captures routers (cuda_graph_modules={modules}), whose input has padding in fine-tuning"


RULES: tuple[Rule, ...] = (
    model_rule(
        "K28",
        (*_GRAPH, "num_moe_experts"),
        _expert_modules_not_capturable,
        why="one of them contains the other, and both are parts of a layer with experts",
        fix="Name only one of them, and only in a model with experts.",
        fails=(["moe_router"], "transformer_engine", None),
        passes=(["moe_router"], "transformer_engine", 4),
    ),
    model_rule(
        "K29",
        _GRAPH,
        _preprocess_without_router,
        why="it prepares the dispatch of the router's selection",
        fix="Add moe_router.",
        fails=(["moe_preprocess"], "transformer_engine"),
        passes=(["attn"], "transformer_engine"),
    ),
    model_rule(
        "K30",
        (*_GRAPH, "num_moe_experts", "moe_layer_freq"),
        _mlp_without_dense_layers,
        why="no layer has a dense MLP",
        fix="Remove mlp.",
        fails=(["mlp"], "transformer_engine", 4, 1),
        passes=(["mlp"], "transformer_engine", 4, 2),
    ),
    model_rule(
        "K31",
        (*_GRAPH, "num_moe_experts", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
        _experts_of_variable_size,
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
        _preprocess_synchronizes,
        why="the dispatch synchronises with the host for the numbers of tokens",
        fix="Remove moe_preprocess, or set moe_pad_expert_input_to_capacity=true.",
        fails=(["moe_router", "moe_preprocess"], "transformer_engine", 4, 1.0, False, "alltoall"),
        passes=(["moe_router", "moe_preprocess"], "transformer_engine", 4, 1.0, True, "alltoall"),
    ),
    model_rule(
        "K33",
        ("recompute_granularity", "cuda_graph_impl", "cuda_graph_modules"),
        _full_recompute_with_module_graphs,
        why="complete layers are recomputed outside of their graphs",
        fix='Set cuda_graph_impl to "full_iteration" or "none", or recompute_granularity to "selective".',
        fails=("full", "transformer_engine", "full"),
        passes=("full", "none", "full"),
    ),
    model_rule(
        "K34",
        (*_RECOMPUTE, "cuda_graph_impl", "cuda_graph_modules"),
        _router_captured_and_recomputed,
        why="a graph cannot be a part of a recomputed module",
        fix="Remove moe from recompute_modules, or moe_router from cuda_graph_modules.",
        fails=(["moe"], "selective", "transformer_engine", ["attn", "moe_router"]),
        passes=(["layernorm"], "selective", "transformer_engine", ["attn"]),
    ),
    model_rule(
        "K35",
        (*_RECOMPUTE, "cuda_graph_impl", "cuda_graph_modules", "attention_dropout", "hidden_dropout"),
        _dropout_recomputed_in_graph,
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
        _experts_of_variable_size_in_full_iteration,
        why="the host reads the number of tokens of each expert, which a graph does not support, unless it is fixed",
        fix="Set moe_token_dispatcher_type=alltoall, moe_expert_capacity_factor and "
        "moe_pad_expert_input_to_capacity=true, or cuda_graph_impl=transformer_engine with "
        "cuda_graph_modules=[attn,moe_router].",
        fails=(FULL_ITERATION, "full", 8, "alltoall", None, False, {}),
        passes=(FULL_ITERATION, "full", 8, "alltoall", 1.0, True, {}),
    ),
    rule(
        "V150",
        "model.cuda_graph_impl",
        _unknown_implementation,
        why="Megatron Core has no other implementation",
        fix="Use a name from the list.",
        fails=("te",),
        passes=("none",),
    ),
    rule(
        "V150a",
        GRAPH_FIELDS,
        _modules_without_graphs,
        why="nothing is captured without an implementation",
        fix="Set model.cuda_graph_impl=transformer_engine, or leave the modules unset.",
        fails=("none", ["attn"], None),
        passes=("none", "full", None),
        severity="warning",
    ),
    rule(
        "V151",
        GRAPH_FIELDS,
        _modules_with_full_iteration,
        why="a graph of the full iteration contains no graphs of modules",
        fix="Leave the modules unset, or set model.cuda_graph_impl=transformer_engine.",
        fails=("full_iteration", ["attn"], None),
        passes=("full_iteration", "", None),
    ),
    rule(
        "V152",
        (*GRAPH_FIELDS, "model.inference_cuda_graph_scope"),
        _local_graphs_by_module,
        why="graphs of individual modules are captured by Transformer Engine",
        fix="Set model.cuda_graph_impl=transformer_engine, or full_iteration.",
        fails=("local", ["attn"]),
        passes=("transformer_engine", ["attn"]),
    ),
    rule(
        "V152a",
        within("model", "inference_cuda_graph_scope cuda_graph_impl"),
        _inference_scope_of_other_implementation,
        why="only the local implementation captures graphs for inference, of layers or of blocks",
        fix="Leave model.inference_cuda_graph_scope unset.",
        fails=("layer", "transformer_engine"),
        passes=("layer", "local"),
    ),
    rule(
        "V152c",
        ("model.cuda_graph_impl", "model.transformer_impl", "facts.cpu"),
        _te_graphs_of_local_layers,
        why="the layers of Megatron Core cannot be captured by Transformer Engine",
        fix="Set model.transformer_impl=transformer_engine, or model.cuda_graph_impl=full_iteration or none.",
        fails=("transformer_engine", "local", False),
        passes=("full_iteration", "local", False),
    ),
    rule(
        "V153a",
        within("model", "cuda_graph_scope cuda_graph_modules"),
        _scope_and_modules_both_set,
        why="the first is the deprecated name of the second",
        fix="Set only model.cuda_graph_modules.",
        fails=("attn", ["mlp"]),
        passes=(None, ["mlp"]),
    ),
    rule(
        "V153",
        GRAPH_FIELDS,
        _unknown_modules,
        why="Megatron Core captures these modules of a layer by name",
        fix="Use names from the list, or leave it empty to capture entire layers.",
        fails=("transformer_engine", "attn,mpl", None),
        passes=("transformer_engine", "attn,mlp", None),
    ),
    rule(
        "C12",
        within("model", "cpu_offloading cuda_graph_impl"),
        _offloading_with_graphs,
        why="a captured layer cannot wait for the host",
        fix="Set model.cuda_graph_impl=none or model.cpu_offloading=false.",
        fails=(True, "transformer_engine"),
        passes=(True, "none"),
    ),
    rule(
        "G56",
        (*within("model", "cuda_graph_impl cuda_graph_modules num_moe_experts"), "dataset.dataset_root"),
        _router_captured_with_padding,
        why="the graph of a router keeps the padding of the batch that it captured",
        fix="Leave moe, moe_router and moe_preprocess out of cuda_graph_modules, or set cuda_graph_impl=none.",
        fails=("transformer_engine", ["attn", "moe_router"], 8, "/data"),
        passes=("transformer_engine", ["attn"], 8, "/data"),
    ),
)
