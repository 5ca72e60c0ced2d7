"""Rules on CUDA graphs. Modules may be set in the new field, the legacy field or both, as text, list or enum."""

from __future__ import annotations

from collections.abc import Mapping

from mb_config.rules.allocator import expandable_segments
from mb_config.rules.rule import Rule

IMPLEMENTATIONS = ("none", "local", "transformer_engine", "full_iteration")
MODULES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_LEGACY_MODULES = ("full_iteration", "full_iteration_inference")
_WHOLE_LAYER = ("", "full")
"""Names without a list of modules, for the entire layer."""

_FIELDS = ("model.cuda_graph_impl", "model.cuda_graph_modules", "model.cuda_graph_scope")


def module_names(value: object) -> set[str]:
    """Return the names in text ("attn,mlp"), a list, or an enum member; empty for None, "" and "full" (V153)."""
    entries = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    texts = [str(entry).rpartition(".")[2] for entry in entries]
    return {name.strip() for text in texts for name in text.split(",")} - set(_WHOLE_LAYER)


def full_iteration(implementation: str | None, modules: object, scope: object) -> bool:
    """Return True if one graph captures the full iteration (V151)."""
    if implementation == "full_iteration":
        return True
    return implementation == "local" and "full_iteration" in module_names(modules) | module_names(scope)


def _v150(implementation: str | None) -> str | None:
    if implementation is None or implementation in IMPLEMENTATIONS:
        return None
    return f"{implementation!r} is not one of {', '.join(IMPLEMENTATIONS)}"


def _unused(implementation: str | None, modules: object, scope: object) -> str | None:
    named = module_names(modules) | module_names(scope)
    if implementation != "none" or not named:
        return None
    return f"is none, so that the modules {', '.join(sorted(named))} have no effect"


def _v151(implementation: str | None, modules: object, scope: object) -> str | None:
    named = (module_names(modules) | module_names(scope)) - {"full_iteration"}
    if not named or not full_iteration(implementation, modules, scope):
        return None
    return f"captures the full iteration, but the modules {', '.join(sorted(named))} are set"


def _v152(implementation: str | None, modules: object, scope: object, inference: object) -> str | None:
    if implementation != "local" or full_iteration(implementation, modules, scope):
        return None
    trained = module_names(modules) | module_names(scope)
    if not trained and str(inference).rpartition(".")[2] in ("layer", "block"):
        return None
    return (
        f"local does not capture training graphs by module ({', '.join(sorted(trained)) or 'no modules set'})"
    )


def _inference_scope(inference: object, implementation: str | None) -> str | None:
    scope = None if inference is None else str(inference).rpartition(".")[2]
    allowed = ("layer", "block") if implementation == "local" else ("none",)
    if scope is None or scope in allowed:
        return None
    return f"{scope} is not {' or '.join(allowed)}, as cuda_graph_impl={implementation or 'none'} needs"


def _two_places(scope: object, modules: object) -> str | None:
    return "is set together with cuda_graph_modules" if scope is not None and module_names(modules) else None


def _v153(implementation: str | None, modules: object, scope: object) -> str | None:
    named = module_names(modules) | module_names(scope)
    wrong = sorted(named - {*MODULES, *_LEGACY_MODULES})
    if not wrong or implementation == "none":
        return None
    return f"cannot capture {', '.join(wrong)}, only {', '.join(MODULES)}"


def _v127(check_nan: bool | None, *graph: object) -> str | None:
    implementation = graph[0] if isinstance(graph[0], str) else None
    if not check_nan or not full_iteration(implementation, *graph[1:]):
        return None
    return "cannot be combined with a CUDA graph of the full iteration"


GRAPH_REGISTER = "NCCL_GRAPH_REGISTER"
"""Variable with which NCCL registers the buffers of captured collectives, unless it is 0."""


def registers_growing_buffers(implementation: str | None, env: Mapping[str, str]) -> str | None:
    """Return the variable that enables expandable segments if graphs of layers are captured, otherwise None."""
    return expandable_segments(env) if implementation == "transformer_engine" else None


def _registered(implementation: str | None, env: Mapping[str, str]) -> str | None:
    variable = registers_growing_buffers(implementation, env)
    if variable is None or env.get(GRAPH_REGISTER, "0") == "0":
        return None
    return f"is transformer_engine with {variable}={env[variable]} and {GRAPH_REGISTER}={env[GRAPH_REGISTER]}"


def _local_layers(implementation: str | None, layers: str | None, cpu: bool) -> str | None:
    if implementation != "transformer_engine" or layers != "local" or cpu:
        return None
    return "is transformer_engine with transformer_impl=local"


RULES: tuple[Rule, ...] = (
    Rule(
        id="V150",
        fields=("model.cuda_graph_impl",),
        test=_v150,
        why="Megatron Core has no other implementation",
        fix="Use a name from the list.",
        fails={"model.cuda_graph_impl": "te"},
        passes={"model.cuda_graph_impl": "none"},
    ),
    Rule(
        id="V150a",
        fields=_FIELDS,
        test=_unused,
        why="nothing is captured without an implementation",
        fix="Set model.cuda_graph_impl=transformer_engine, or leave the modules unset.",
        severity="warning",
        fails=dict(zip(_FIELDS, ("none", ["attn"], None), strict=True)),
        passes=dict(zip(_FIELDS, ("none", "full", None), strict=True)),
    ),
    Rule(
        id="V151",
        fields=_FIELDS,
        test=_v151,
        why="a graph of the full iteration contains no graphs of modules",
        fix="Leave the modules unset, or set model.cuda_graph_impl=transformer_engine.",
        fails=dict(zip(_FIELDS, ("full_iteration", ["attn"], None), strict=True)),
        passes=dict(zip(_FIELDS, ("full_iteration", "", None), strict=True)),
    ),
    Rule(
        id="V152",
        fields=(*_FIELDS, "model.inference_cuda_graph_scope"),
        test=_v152,
        why="graphs of individual modules are captured by Transformer Engine",
        fix="Set model.cuda_graph_impl=transformer_engine, or full_iteration.",
        fails={"model.cuda_graph_impl": "local", "model.cuda_graph_modules": ["attn"]},
        passes={"model.cuda_graph_impl": "transformer_engine", "model.cuda_graph_modules": ["attn"]},
    ),
    Rule(
        id="V152a",
        fields=("model.inference_cuda_graph_scope", "model.cuda_graph_impl"),
        test=_inference_scope,
        why="only the local implementation captures graphs for inference, of layers or of blocks",
        fix="Leave model.inference_cuda_graph_scope unset.",
        fails={
            "model.inference_cuda_graph_scope": "layer",
            "model.cuda_graph_impl": "transformer_engine",
        },
        passes={"model.inference_cuda_graph_scope": "layer", "model.cuda_graph_impl": "local"},
    ),
    Rule(
        id="V152b",
        fields=("model.cuda_graph_impl", "facts.env"),
        test=_registered,
        why="NCCL would register buffers of a captured collective that torch's allocator remaps, and the replay would "
        "access unmapped memory",
        fix=f"Set {GRAPH_REGISTER}=0 or leave it unset (resolving sets it), or remove expandable_segments.",
        fails={
            "model.cuda_graph_impl": "transformer_engine",
            "facts.env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True", GRAPH_REGISTER: "1"},
        },
        passes={
            "model.cuda_graph_impl": "transformer_engine",
            "facts.env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True", GRAPH_REGISTER: "0"},
        },
    ),
    Rule(
        id="V152c",
        fields=("model.cuda_graph_impl", "model.transformer_impl", "facts.cpu"),
        test=_local_layers,
        why="the layers of Megatron Core cannot be captured by Transformer Engine",
        fix="Set model.transformer_impl=transformer_engine, or model.cuda_graph_impl=full_iteration or none.",
        fails={
            "model.cuda_graph_impl": "transformer_engine",
            "model.transformer_impl": "local",
            "facts.cpu": False,
        },
        passes={
            "model.cuda_graph_impl": "full_iteration",
            "model.transformer_impl": "local",
            "facts.cpu": False,
        },
    ),
    Rule(
        id="V153a",
        fields=("model.cuda_graph_scope", "model.cuda_graph_modules"),
        test=_two_places,
        why="the first is the deprecated name of the second",
        fix="Set only model.cuda_graph_modules.",
        fails={"model.cuda_graph_scope": "attn", "model.cuda_graph_modules": ["mlp"]},
        passes={"model.cuda_graph_scope": None, "model.cuda_graph_modules": ["mlp"]},
    ),
    Rule(
        id="V153",
        fields=_FIELDS,
        test=_v153,
        why="Megatron Core captures these modules of a layer by name",
        fix="Use names from the list, or leave it empty to capture entire layers.",
        fails=dict(zip(_FIELDS, ("transformer_engine", "attn,mpl", None), strict=True)),
        passes=dict(zip(_FIELDS, ("transformer_engine", "attn,mlp", None), strict=True)),
    ),
    Rule(
        id="V127",
        fields=("rerun_state_machine.check_for_nan_in_loss", *_FIELDS),
        test=_v127,
        why="the check reads the loss on the host, within the graph",
        fix="Set rerun_state_machine.check_for_nan_in_loss=false.",
        fails={
            "rerun_state_machine.check_for_nan_in_loss": True,
            "model.cuda_graph_impl": "full_iteration",
        },
        passes={
            "rerun_state_machine.check_for_nan_in_loss": False,
            "model.cuda_graph_impl": "full_iteration",
        },
    ),
)
