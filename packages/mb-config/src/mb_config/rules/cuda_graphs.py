"""Rules on CUDA graphs. Modules may be set in the new field, the legacy field or both, as text, list or enum."""

from __future__ import annotations

from collections.abc import Mapping

from mb_config.rules.allocator import expandable_segments
from mb_schema.rule_kinds import rule, within
from mb_schema.rules import Rule

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


_CHECKS = "check_for_nan_in_loss check_for_spiky_loss check_loss_immediately rerun_mode"


def _v127(
    nan: bool | None, spiky: bool | None, immediately: bool | None, mode: str | None, *graph: object
) -> str | None:
    implementation = graph[0] if isinstance(graph[0], str) else None
    machine = mode not in (None, "disabled")
    at_once = spiky or (nan and (immediately or machine))
    if not at_once or not full_iteration(implementation, *graph[1:]):
        return None
    how = "by the rerun machine" if machine or spiky else "in its microbatch"
    return f"each loss is read {how}, within a CUDA graph of the full iteration"


def _grad_checks(nan: bool | None, large: bool | None, *graph: object) -> str | None:
    implementation = graph[0] if isinstance(graph[0], str) else None
    if not (nan or large) or not full_iteration(implementation, *graph[1:]):
        return None
    return "gradients are read before they are reduced, within a CUDA graph of the full iteration"


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


_TIMED = (
    "straggler.log_straggler",
    "model.cuda_graph_impl",
    "model.cuda_graph_modules",
    "model.overlap_moe_expert_parallel_comm",
)


def _hooks_in_graphs(steps: list[int] | None, graphs: str | None) -> str | None:
    return f"requires cuda_graph_impl=none ({graphs})" if steps and graphs not in (None, "none") else None


def _no_separate_forward_passes(
    timed: bool | None, implementation: str | None, modules: object, overlapped: bool | None
) -> str | None:
    in_graph = full_iteration(implementation or "none", modules, None)
    reason = "the step is one CUDA graph" if in_graph else "they are computed together with backward passes"
    return f"is true, but {reason}" if timed and (in_graph or overlapped) else None


RULES: tuple[Rule, ...] = (
    rule(
        "V150",
        "model.cuda_graph_impl",
        _v150,
        why="Megatron Core has no other implementation",
        fix="Use a name from the list.",
        fails=("te",),
        passes=("none",),
    ),
    rule(
        "V150a",
        _FIELDS,
        _unused,
        why="nothing is captured without an implementation",
        fix="Set model.cuda_graph_impl=transformer_engine, or leave the modules unset.",
        fails=("none", ["attn"], None),
        passes=("none", "full", None),
        severity="warning",
    ),
    rule(
        "V151",
        _FIELDS,
        _v151,
        why="a graph of the full iteration contains no graphs of modules",
        fix="Leave the modules unset, or set model.cuda_graph_impl=transformer_engine.",
        fails=("full_iteration", ["attn"], None),
        passes=("full_iteration", "", None),
    ),
    rule(
        "V152",
        (*_FIELDS, "model.inference_cuda_graph_scope"),
        _v152,
        why="graphs of individual modules are captured by Transformer Engine",
        fix="Set model.cuda_graph_impl=transformer_engine, or full_iteration.",
        fails=("local", ["attn"]),
        passes=("transformer_engine", ["attn"]),
    ),
    rule(
        "V152a",
        within("model", "inference_cuda_graph_scope cuda_graph_impl"),
        _inference_scope,
        why="only the local implementation captures graphs for inference, of layers or of blocks",
        fix="Leave model.inference_cuda_graph_scope unset.",
        fails=("layer", "transformer_engine"),
        passes=("layer", "local"),
    ),
    rule(
        "V152b",
        ("model.cuda_graph_impl", "facts.env"),
        _registered,
        why="NCCL would register buffers of a captured collective that torch's allocator remaps, and the replay would "
        "access unmapped memory",
        fix=f"Set {GRAPH_REGISTER}=0 or leave it unset (resolving sets it), or remove expandable_segments.",
        fails=("transformer_engine", {"PYTORCH_ALLOC_CONF": "expandable_segments:True", GRAPH_REGISTER: "1"}),
        passes=(
            "transformer_engine",
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True", GRAPH_REGISTER: "0"},
        ),
    ),
    rule(
        "V152c",
        ("model.cuda_graph_impl", "model.transformer_impl", "facts.cpu"),
        _local_layers,
        why="the layers of Megatron Core cannot be captured by Transformer Engine",
        fix="Set model.transformer_impl=transformer_engine, or model.cuda_graph_impl=full_iteration or none.",
        fails=("transformer_engine", "local", False),
        passes=("full_iteration", "local", False),
    ),
    rule(
        "V153a",
        within("model", "cuda_graph_scope cuda_graph_modules"),
        _two_places,
        why="the first is the deprecated name of the second",
        fix="Set only model.cuda_graph_modules.",
        fails=("attn", ["mlp"]),
        passes=(None, ["mlp"]),
    ),
    rule(
        "V153",
        _FIELDS,
        _v153,
        why="Megatron Core captures these modules of a layer by name",
        fix="Use names from the list, or leave it empty to capture entire layers.",
        fails=("transformer_engine", "attn,mpl", None),
        passes=("transformer_engine", "attn,mlp", None),
    ),
    rule(
        "V127",
        (*within("rerun_state_machine", _CHECKS), *_FIELDS),
        _v127,
        why="the host cannot read a value while the step is captured; the usual check reads the loss one step later",
        fix="Leave check_loss_immediately, check_for_spiky_loss and rerun_mode of the section at their defaults.",
        fails=(True, False, True, "disabled", "full_iteration"),
        passes=(True, False, False, "disabled", "full_iteration"),
    ),
    rule(
        "V127a",
        (*within("ddp", "check_for_nan_in_grad check_for_large_grads"), *_FIELDS),
        _grad_checks,
        why="the host cannot read a value while the step is captured",
        fix="Set ddp.check_for_nan_in_grad=false and ddp.check_for_large_grads=false.",
        fails=(True, False, "full_iteration"),
        passes=(False, False, "full_iteration"),
    ),
    rule(
        "T36b",
        ("logger.tensor_norms_steps", "model.cuda_graph_impl"),
        _hooks_in_graphs,
        why="a captured graph calls no hooks, so that the outputs of its modules would be missing",
        fix="Set model.cuda_graph_impl=none, or logger.tensor_norms_steps=null.",
        fails=([5], "local"),
        passes=([5], "none"),
    ),
    rule(
        "T42",
        _TIMED,
        _no_separate_forward_passes,
        why="the speed of a rank is the time of its forward passes, which are not called one by one",
        fix="Set straggler.log_straggler=false, or the other at its default.",
        fails=(True, "full_iteration", None, False),
        passes=(True, "transformer_engine", None, False),
    ),
)
