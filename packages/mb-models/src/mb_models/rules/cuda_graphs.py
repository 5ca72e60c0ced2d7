"""Rules on CUDA graphs: Megatron Core's own conditions, and settings that cannot be captured."""

from mb_schema.cuda_graphs import FULL_ITERATION, captures_full_iteration, module_names
from mb_schema.rule_kinds import model_rule
from mb_schema.rules import Rule, rules_in


def _captured_modules(impl: str | None, modules: object) -> set[str]:
    if impl not in ("local", "transformer_engine"):
        return set()
    named = module_names(modules)
    return set() if FULL_ITERATION in named else named


@model_rule(
    "K28",
    why="one of them contains the other, and both are parts of a layer with experts",
    fix="Name only one of them, and only in a model with experts.",
    fails={"cuda_graph_modules": ["moe_router"], "cuda_graph_impl": "transformer_engine"},
    passes={"num_moe_experts": 4},
)
def _expert_modules_not_capturable(cuda_graph_modules, cuda_graph_impl, num_moe_experts):
    chosen = _captured_modules(cuda_graph_impl, cuda_graph_modules) & {"moe", "moe_router"}
    if not chosen:
        return None
    if (num_moe_experts or 0) <= 1:
        return f"{', '.join(sorted(chosen))} cannot be captured in a model without experts"
    return "cannot capture both moe and moe_router" if len(chosen) == 2 else None


@model_rule(
    "K29",
    why="it prepares the dispatch of the router's selection",
    fix="Add moe_router.",
    fails={"cuda_graph_modules": ["moe_preprocess"], "cuda_graph_impl": "transformer_engine"},
    passes={"cuda_graph_modules": ["attn"]},
)
def _preprocess_without_router(cuda_graph_modules, cuda_graph_impl):
    chosen = _captured_modules(cuda_graph_impl, cuda_graph_modules)
    alone = (
        cuda_graph_impl == "transformer_engine" and "moe_preprocess" in chosen and "moe_router" not in chosen
    )
    return "moe_preprocess is captured only together with moe_router" if alone else None


@model_rule(
    "K30",
    why="no layer has a dense MLP",
    fix="Remove mlp.",
    fails={
        "cuda_graph_modules": ["mlp"],
        "cuda_graph_impl": "transformer_engine",
        "num_moe_experts": 4,
        "moe_layer_freq": 1,
    },
    passes={"moe_layer_freq": 2},
)
def _mlp_without_dense_layers(cuda_graph_modules, cuda_graph_impl, num_moe_experts, moe_layer_freq):
    everywhere = moe_layer_freq == 1 or (not isinstance(moe_layer_freq, int) and 0 not in moe_layer_freq)
    if (
        (num_moe_experts or 0) <= 1
        or not everywhere
        or "mlp" not in _captured_modules(cuda_graph_impl, cuda_graph_modules)
    ):
        return None
    return "mlp cannot be captured if every layer has experts"


@model_rule(
    "K31",
    why="the shapes in a graph are the same in every step",
    fix="Set both, or capture moe_router instead.",
    fails={"cuda_graph_modules": ["moe"], "cuda_graph_impl": "transformer_engine", "num_moe_experts": 4},
    passes={"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
)
def _experts_of_variable_size(
    cuda_graph_modules,
    cuda_graph_impl,
    num_moe_experts,
    moe_expert_capacity_factor,
    moe_pad_expert_input_to_capacity,
):
    fixed = moe_expert_capacity_factor is not None and moe_pad_expert_input_to_capacity
    if (
        (num_moe_experts or 0) <= 1
        or fixed
        or "moe" not in _captured_modules(cuda_graph_impl, cuda_graph_modules)
    ):
        return None
    return "moe is captured only with moe_expert_capacity_factor and moe_pad_expert_input_to_capacity"


@model_rule(
    "K32",
    why="the dispatch synchronises with the host for the numbers of tokens",
    fix="Remove moe_preprocess, or set moe_pad_expert_input_to_capacity=true.",
    fails={
        "cuda_graph_modules": ["moe_router", "moe_preprocess"],
        "cuda_graph_impl": "transformer_engine",
        "num_moe_experts": 4,
        "moe_expert_capacity_factor": 1.0,
        "moe_token_dispatcher_type": "alltoall",
    },
    passes={"moe_pad_expert_input_to_capacity": True},
)
def _preprocess_synchronizes(
    cuda_graph_modules,
    cuda_graph_impl,
    num_moe_experts,
    moe_expert_capacity_factor,
    moe_pad_expert_input_to_capacity,
    moe_token_dispatcher_type,
):
    waits = (
        moe_expert_capacity_factor is not None
        and not moe_pad_expert_input_to_capacity
        and moe_token_dispatcher_type == "alltoall"
    )
    if (
        (num_moe_experts or 0) <= 1
        or not waits
        or "moe_preprocess" not in _captured_modules(cuda_graph_impl, cuda_graph_modules)
    ):
        return None
    return "moe_preprocess cannot be captured with a capacity factor and without padding"


@model_rule(
    "K33",
    why="complete layers are recomputed outside of their graphs",
    fix='Set cuda_graph_impl to "full_iteration" or "none", or recompute_granularity to "selective".',
    fails={"recompute_granularity": "full", "cuda_graph_impl": "transformer_engine"},
    passes={"cuda_graph_impl": "none"},
)
def _full_recompute_with_module_graphs(recompute_granularity, cuda_graph_impl, cuda_graph_modules):
    if (
        recompute_granularity != "full"
        or cuda_graph_impl in (None, "none", FULL_ITERATION)
        or FULL_ITERATION in module_names(cuda_graph_modules)
    ):
        return None
    return f"is incompatible with cuda_graph_impl={cuda_graph_impl}"


@model_rule(
    "K34",
    why="a graph cannot be a part of a recomputed module",
    fix="Remove moe from recompute_modules, or moe_router from cuda_graph_modules.",
    fails={
        "recompute_modules": ["moe"],
        "recompute_granularity": "selective",
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_modules": ["attn", "moe_router"],
    },
    passes={"recompute_modules": ["layernorm"], "cuda_graph_modules": ["attn"]},
)
def _router_captured_and_recomputed(
    recompute_modules, recompute_granularity, cuda_graph_impl, cuda_graph_modules
):
    if (
        recompute_granularity != "selective"
        or cuda_graph_impl != "transformer_engine"
        or "moe" not in (recompute_modules or ())
    ):
        return None
    if "moe_router" in _captured_modules(cuda_graph_impl, cuda_graph_modules):
        return "moe contains the captured moe_router"
    return None


@model_rule(
    "K35",
    why="random numbers inside a graph cannot be reproduced for recomputation",
    fix="Set the dropout to 0, or remove the module from recompute_modules.",
    fails={
        "recompute_modules": None,
        "recompute_granularity": "selective",
        "cuda_graph_impl": "full_iteration",
        "cuda_graph_modules": "full",
        "attention_dropout": 0.1,
    },
    passes={"attention_dropout": 0.0, "hidden_dropout": 0.1},
)
def _dropout_recomputed_in_graph(
    recompute_modules,
    recompute_granularity,
    cuda_graph_impl,
    cuda_graph_modules,
    attention_dropout,
    hidden_dropout,
):
    if recompute_granularity != "selective" or cuda_graph_impl == "none":
        return None
    captured = _captured_modules(cuda_graph_impl, cuda_graph_modules)
    drops = {
        "core_attn": ("attn", attention_dropout),
        "mlp": ("mlp", hidden_dropout),
        "moe": ("moe", hidden_dropout),
    }
    for name in ["core_attn"] if recompute_modules is None else recompute_modules:
        part, dropout = drops.get(name, ("", 0.0))
        if dropout and (not captured or part in captured):
            return f"{name} repeats its dropout of {dropout} inside a captured graph"
    return None


@model_rule(
    "G60",
    why="random numbers inside a graph cannot be reproduced for recomputation: gradients would belong to other dropout "
    "masks than the loss",
    fix="Set hidden_dropout and attention_dropout to 0, or cuda_graph_impl=none.",
    fails={
        "recompute_granularity": "full",
        "cuda_graph_impl": FULL_ITERATION,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.0,
    },
    passes={"hidden_dropout": 0.0},
)
def _dropout_of_complete_layers_recomputed_in_graph(
    recompute_granularity, cuda_graph_impl, cuda_graph_modules, hidden_dropout, attention_dropout
):
    """Add to K35, Megatron's condition, what it has for selective recomputation alone."""
    if recompute_granularity != "full" or not captures_full_iteration(cuda_graph_impl, cuda_graph_modules):
        return None
    if not (hidden_dropout or attention_dropout):
        return None
    return f"repeats dropout (hidden {hidden_dropout}, attention {attention_dropout}) inside a captured graph"


@model_rule(
    "G37",
    why="the host reads the number of tokens of each expert, which a graph does not support, unless it is fixed",
    fix="Set moe_token_dispatcher_type=alltoall, moe_expert_capacity_factor and "
    "moe_pad_expert_input_to_capacity=true, or cuda_graph_impl=transformer_engine with "
    "cuda_graph_modules=[attn,moe_router].",
    fails={
        "cuda_graph_impl": FULL_ITERATION,
        "num_moe_experts": 8,
        "moe_token_dispatcher_type": "alltoall",
        "moe_pad_expert_input_to_capacity": False,
    },
    passes={"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
)
def _experts_of_variable_size_in_full_iteration(
    cuda_graph_impl,
    cuda_graph_modules,
    num_moe_experts,
    moe_token_dispatcher_type,
    moe_expert_capacity_factor,
    moe_pad_expert_input_to_capacity,
    transformer,
):
    full_iteration = captures_full_iteration(cuda_graph_impl, cuda_graph_modules)
    fixed = (
        moe_token_dispatcher_type == "alltoall"
        and moe_expert_capacity_factor is not None
        and moe_pad_expert_input_to_capacity
    )
    bounded = (
        moe_token_dispatcher_type == "flex" and transformer.get("moe_expert_rank_capacity_factor") is not None
    )
    if not full_iteration or not num_moe_experts or fixed or bounded:
        return None
    return (
        f"captures the full iteration with num_moe_experts={num_moe_experts} "
        f"(moe_token_dispatcher_type={moe_token_dispatcher_type}, "
        f"moe_expert_capacity_factor={moe_expert_capacity_factor}, "
        f"moe_pad_expert_input_to_capacity={moe_pad_expert_input_to_capacity})"
    )


IMPLEMENTATIONS = ("none", "local", "transformer_engine", "full_iteration")


MODULES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")


_LEGACY_MODULES = ("full_iteration", "full_iteration_inference")


@model_rule(
    "V150",
    why="Megatron Core has no other implementation",
    fix="Use a name from the list.",
    fails={"cuda_graph_impl": "te"},
    passes={"cuda_graph_impl": "none"},
)
def _unknown_implementation(cuda_graph_impl):
    if cuda_graph_impl is None or cuda_graph_impl in IMPLEMENTATIONS:
        return None
    return f"{cuda_graph_impl!r} is not one of {', '.join(IMPLEMENTATIONS)}"


@model_rule(
    "V150a",
    why="nothing is captured without an implementation",
    fix="Set model.cuda_graph_impl=transformer_engine, or leave the modules unset.",
    fails={"cuda_graph_impl": "none", "cuda_graph_modules": ["attn"]},
    passes={"cuda_graph_modules": "full"},
    severity="warning",
)
def _modules_without_graphs(cuda_graph_impl, cuda_graph_modules, cuda_graph_scope):
    named = module_names(cuda_graph_modules, cuda_graph_scope)
    if cuda_graph_impl != "none" or not named:
        return None
    return f"is none, so that the modules {', '.join(sorted(named))} have no effect"


@model_rule(
    "V151",
    why="a graph of the full iteration contains no graphs of modules",
    fix="Leave the modules unset, or set model.cuda_graph_impl=transformer_engine.",
    fails={"cuda_graph_impl": "full_iteration", "cuda_graph_modules": ["attn"]},
    passes={"cuda_graph_modules": ""},
)
def _modules_with_full_iteration(cuda_graph_impl, cuda_graph_modules, cuda_graph_scope):
    named = module_names(cuda_graph_modules, cuda_graph_scope) - {FULL_ITERATION}
    if not named or not captures_full_iteration(cuda_graph_impl, cuda_graph_modules, cuda_graph_scope):
        return None
    return f"captures the full iteration, but the modules {', '.join(sorted(named))} are set"


@model_rule(
    "V152",
    why="graphs of individual modules are captured by Transformer Engine",
    fix="Set model.cuda_graph_impl=transformer_engine, or full_iteration.",
    fails={"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"]},
    passes={"cuda_graph_impl": "transformer_engine"},
)
def _local_graphs_by_module(
    cuda_graph_impl, cuda_graph_modules, cuda_graph_scope, inference_cuda_graph_scope
):
    if cuda_graph_impl != "local" or captures_full_iteration(
        cuda_graph_impl, cuda_graph_modules, cuda_graph_scope
    ):
        return None
    trained = module_names(cuda_graph_modules, cuda_graph_scope)
    if not trained and str(inference_cuda_graph_scope).rpartition(".")[2] in ("layer", "block"):
        return None
    return (
        f"local does not capture training graphs by module ({', '.join(sorted(trained)) or 'no modules set'})"
    )


@model_rule(
    "V152a",
    why="only the local implementation captures graphs for inference, of layers or of blocks",
    fix="Leave model.inference_cuda_graph_scope unset.",
    fails={"inference_cuda_graph_scope": "layer", "cuda_graph_impl": "transformer_engine"},
    passes={"cuda_graph_impl": "local"},
)
def _inference_scope_of_other_implementation(inference_cuda_graph_scope, cuda_graph_impl):
    scope = None if inference_cuda_graph_scope is None else str(inference_cuda_graph_scope).rpartition(".")[2]
    allowed = ("layer", "block") if cuda_graph_impl == "local" else ("none",)
    if scope is None or scope in allowed:
        return None
    return f"{scope} is not {' or '.join(allowed)}, as cuda_graph_impl={cuda_graph_impl or 'none'} needs"


@model_rule(
    "V153a",
    why="the first is the deprecated name of the second",
    fix="Set only model.cuda_graph_modules.",
    fails={"cuda_graph_scope": "attn", "cuda_graph_modules": ["mlp"]},
    passes={"cuda_graph_scope": None},
)
def _scope_and_modules_both_set(cuda_graph_scope, cuda_graph_modules):
    if cuda_graph_scope is not None and module_names(cuda_graph_modules):
        return "is set together with cuda_graph_modules"
    return None


@model_rule(
    "V153",
    why="Megatron Core captures these modules of a layer by name",
    fix="Use names from the list, or leave it empty to capture entire layers.",
    fails={"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": "attn,mpl"},
    passes={"cuda_graph_modules": "attn,mlp"},
)
def _unknown_modules(cuda_graph_impl, cuda_graph_modules, cuda_graph_scope):
    named = module_names(cuda_graph_modules, cuda_graph_scope)
    wrong = sorted(named - {*MODULES, *_LEGACY_MODULES})
    if not wrong or cuda_graph_impl == "none":
        return None
    return f"cannot capture {', '.join(wrong)}, only {', '.join(MODULES)}"


@model_rule(
    "V152c",
    why="the layers of Megatron Core cannot be captured by Transformer Engine",
    fix="Set model.transformer_impl=transformer_engine, or model.cuda_graph_impl=full_iteration or none.",
    fails={"cuda_graph_impl": "transformer_engine", "transformer_impl": "local"},
    passes={"cuda_graph_impl": "full_iteration"},
)
def _te_graphs_of_local_layers(cuda_graph_impl, transformer_impl, *, cpu):
    if cuda_graph_impl != "transformer_engine" or transformer_impl != "local" or cpu:
        return None
    return "is transformer_engine with transformer_impl=local"


@model_rule(
    "C12",
    why="a captured layer cannot wait for the host",
    fix="Set model.cuda_graph_impl=none or model.cpu_offloading=false.",
    fails={"cpu_offloading": True, "cuda_graph_impl": "transformer_engine"},
    passes={"cuda_graph_impl": "none"},
)
def _offloading_with_graphs(cpu_offloading, cuda_graph_impl):
    if not cpu_offloading or cuda_graph_impl in (None, "none", "full_iteration"):
        return None
    return f"is not supported with CUDA graphs (cuda_graph_impl={cuda_graph_impl})"


@model_rule(
    "G56",
    why="the graph of a router keeps the padding of the batch that it captured",
    fix="Leave moe, moe_router and moe_preprocess out of cuda_graph_modules, or set cuda_graph_impl=none.",
    fails={
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_modules": ["attn", "moe_router"],
        "num_moe_experts": 8,
        "dataset__dataset_root": "/data",
    },
    passes={"cuda_graph_modules": ["attn"]},
)
def _router_captured_with_padding(
    cuda_graph_impl, cuda_graph_modules, num_moe_experts, dataset__dataset_root
):
    chosen = [cuda_graph_modules] if isinstance(cuda_graph_modules, str) else list(cuda_graph_modules or ())
    routed = not chosen or {"full", "moe", "moe_router", "moe_preprocess"} & {*chosen}
    if (
        cuda_graph_impl != "transformer_engine"
        or not num_moe_experts
        or dataset__dataset_root is None
        or not routed
    ):
        return None
    return (
        f"captures routers (cuda_graph_modules={cuda_graph_modules}), whose input has padding in fine-tuning"
    )


RULES: tuple[Rule, ...] = rules_in(globals())
