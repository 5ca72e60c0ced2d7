"""What Megatron Core's TransformerConfig refuses, as rules: known before launch, all at once, and without Megatron.

A test sets each rule's failing example before Megatron Core itself, which must refuse it, and the other, which it must
accept.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from mb_models.rule import Rule

RECOMPUTABLE = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts")
"""Parts of any layer that can be computed again."""


FULL = "full_iteration"
"""A graph of the whole step: an implementation, and the old name of a module that asks for it."""


def limit(
    number: str,
    fields: Sequence[str],
    test: Callable[..., str | None],
    *,
    why: str,
    fix: str,
    fails: Sequence[object],
    passes: Sequence[object],
    severity: Literal["error", "warning"] = "error",
) -> Rule:
    """Write down one limit; the examples are in the order of the fields."""
    paths = tuple(f"model.{name}" for name in fields)
    return Rule(
        id=number,
        fields=paths,
        test=test,
        why=why,
        fix=fix,
        severity=severity,
        fails=dict(zip(paths, fails, strict=True)),
        passes=dict(zip(paths, passes, strict=True)),
    )


def _needs(what: str) -> Callable[..., str | None]:
    """Return a test of a switch (first) that goes only with another (second)."""
    return lambda on, other: f"is {on} without {what}" if on and not other else None


def _selective_takes_no_layers(layers: int | None, granularity: str | None) -> str | None:
    if granularity != "selective" or layers is None:
        return None
    return f'"selective" takes modules, not layers (recompute_num_layers={layers})'


def _recompute_modules(
    modules: Sequence[str] | None, granularity: str | None, latent: bool, extra: Mapping[str, object]
) -> str | None:
    if granularity != "selective":
        return None
    gated = extra.get("experimental_attention_variant") == "gated_delta_net"
    known = (*RECOMPUTABLE, *["mla_up_proj"] * latent, *["gdn_norm_out"] * gated)
    wrong = [name for name in modules or () if name not in known]
    return f"cannot compute {', '.join(wrong)} again, only {', '.join(known)}" if wrong else None


def _activation_of_experts(modules: Sequence[str] | None, granularity: str | None, gemm: bool) -> str | None:
    if granularity != "selective" or "moe_act" not in (modules or ()) or gemm:
        return None
    return "moe_act needs moe_grouped_gemm"


def _shared_experts_again(
    modules: Sequence[str] | None, granularity: str | None, overlap: bool, width: int | None
) -> str | None:
    if granularity != "selective" or "shared_experts" not in (modules or ()) or not overlap or width is None:
        return None
    return "shared_experts does not go with moe_shared_expert_overlap"


def _eight_bits_again(
    modules: Sequence[str] | None, granularity: str | None, fp8: str | None, recipe: str | None
) -> str | None:
    chosen = {"moe_act", "layernorm"} & {*(modules or ())}
    if granularity != "selective" or not chosen or not fp8 or recipe != "delayed":
        return None
    return f"{', '.join(sorted(chosen))} cannot be computed again under fp8_recipe=delayed"


def _spread_activations(spread: bool | None, sequence: bool, granularity: str | None) -> str | None:
    on = spread and sequence and granularity is not None
    return "does not go with sequence_parallel" if on else None


def _one_narrow_format(fp8: str | None, fp4: str | None) -> str | None:
    return f"is {fp8} beside fp4={fp4}" if fp8 and fp4 else None


def _own_quantizer(bits: str) -> Callable[..., str | None]:
    def test(recipe: str | None, chosen: str | None, extra: Mapping[str, object]) -> str | None:
        missing = chosen and recipe == "custom" and not extra.get(f"fp{bits}_quantizer_factory")
        return f"custom needs transformer.fp{bits}_quantizer_factory" if missing else None

    return test


def _outer_layers(on: bool, fp8: str | None, recipe: str | None) -> str | None:
    return "does not go with fp8_recipe=delayed" if on and fp8 and recipe == "delayed" else None


def _outer_counts(start: int, end: int, on: bool, fp8: str | None, layers: int, pp: int) -> str | None:
    most = layers // pp if pp > 0 else 0
    if not (on and fp8) or (0 <= start <= most and 0 <= end <= most):
        return None
    return f"{start} at the start and {end} at the end, where a pipeline stage has {most} layers"


def _some_experts(experts: int | None) -> str | None:
    return f"is {experts}" if experts is not None and experts < 1 else None


def _expert_bias(experts: int | None, bias: bool, etp: int | None, tp: int) -> str | None:
    size = tp if etp is None else etp
    if experts is None or not bias or size == 1:
        return None
    return f"{experts} experts with biases cannot be split over {size} tensor-parallel ranks"


def _shared_width(width: int | None) -> str | None:
    return f"is {width}" if width is not None and width < 1 else None


def _shared_overlap(on: bool, width: int | None, dispatcher: str) -> str | None:
    if not on or width is None or dispatcher in ("alltoall", "flex"):
        return None
    return f"does not go with moe_token_dispatcher_type={dispatcher}"


def _a_loss_each(kinds: str | Sequence[str], weights: float | Sequence[float]) -> str | None:
    if isinstance(kinds, str) or (not isinstance(weights, int | float) and len(weights) == len(kinds)):
        return None
    return f"is {weights} for {len(kinds)} kinds of balancing"


def _capacity(factor: float | None, kinds: str | Sequence[str]) -> str | None:
    chosen = [kinds] if isinstance(kinds, str) else list(kinds)
    if factor is None or "sinkhorn" not in chosen:
        return None
    return f"is {factor} beside moe_router_load_balancing_type=sinkhorn"


def _padded_to_capacity(pad: bool, factor: float | None) -> str | None:
    return "needs moe_expert_capacity_factor" if pad and factor is None else None


def _score_bias(on: bool, score: str) -> str | None:
    if not on or score in ("sigmoid", "sqrtsoftplus"):
        return None
    return f"does not go with moe_router_score_function={score}"


def _one_expert(topk: int, score: str, pre: bool, kind: str | Sequence[str]) -> str | None:
    if topk != 1 or score != "softmax" or pre or kind == "sinkhorn":
        return None
    return "a softmax over the one chosen expert has no gradient"


def _groups(topk: int | None, groups: int | None, experts: int | None) -> str | None:
    if not topk:
        return None
    if not groups or not experts:
        return f"needs moe_router_num_groups and num_moe_experts (they are {groups} and {experts})"
    if experts % groups or topk > groups:
        return f"{topk} of {groups} groups of {experts} experts cannot be"
    return None


def _fused_activation(on: bool, activation: str, gated: bool, bias: bool) -> str | None:
    if not on:
        return None
    if activation not in ("gelu", "silu", "quick_gelu"):
        return f"knows no fused {activation}"
    if not gated and (activation == "quick_gelu" or (activation == "gelu" and not bias)):
        return f"knows {activation} only gated" + ("" if activation == "quick_gelu" else ", or with a bias")
    return None


def _fused_norm(on: bool, normalization: str) -> str | None:
    return f"does not go with normalization={normalization}" if on and normalization != "RMSNorm" else None


def _something_to_offload(on: bool, extra: Mapping[str, object]) -> str | None:
    return "needs transformer.offload_modules" if on and not extra.get("offload_modules") else None


def _counted_split(layers: int, pp: int, vp: int | None, embedding: bool, loss: bool) -> str | None:
    total, parts = layers + embedding + loss, pp * (vp or 1)
    if not (embedding or loss) or parts < 1 or total % parts == 0:
        return None
    return f"{layers} layers and {embedding + loss} more cannot be cut into {parts} equal parts"


def _graphed(impl: str, modules: str | Sequence[str]) -> set[str]:
    """Return the parts that are captured one by one."""
    if impl not in ("local", "transformer_engine"):
        return set()
    named = modules.split(",") if isinstance(modules, str) else modules
    return set() if FULL in named else {name for name in named if name not in ("", "full")}


def _graph_of_experts(modules: str | Sequence[str], impl: str, experts: int | None) -> str | None:
    chosen = _graphed(impl, modules) & {"moe", "moe_router"}
    if not chosen:
        return None
    if (experts or 0) <= 1:
        return f"{', '.join(sorted(chosen))} cannot be captured in a model without experts"
    return "cannot capture both moe and moe_router" if len(chosen) == 2 else None


def _graph_of_dispatch(modules: str | Sequence[str], impl: str) -> str | None:
    chosen = _graphed(impl, modules)
    alone = impl == "transformer_engine" and "moe_preprocess" in chosen and "moe_router" not in chosen
    return "moe_preprocess is captured only together with moe_router" if alone else None


def _graph_of_dense_parts(
    modules: str | Sequence[str], impl: str, experts: int | None, freq: int | Sequence[int]
) -> str | None:
    everywhere = freq == 1 or (not isinstance(freq, int) and 0 not in freq)
    if (experts or 0) <= 1 or not everywhere or "mlp" not in _graphed(impl, modules):
        return None
    return "mlp cannot be captured where every layer has experts"


def _graph_of_dropping_experts(
    modules: str | Sequence[str], impl: str, experts: int | None, factor: float | None, pad: bool
) -> str | None:
    fixed = factor is not None and pad
    if (experts or 0) <= 1 or fixed or "moe" not in _graphed(impl, modules):
        return None
    return "moe is captured only with moe_expert_capacity_factor and moe_pad_expert_input_to_capacity"


def _graph_of_waiting_dispatch(
    modules: str | Sequence[str], impl: str, experts: int | None, factor: float | None, pad: bool, kind: str
) -> str | None:
    waits = factor is not None and not pad and kind == "alltoall"
    if (experts or 0) <= 1 or not waits or "moe_preprocess" not in _graphed(impl, modules):
        return None
    return "moe_preprocess is not captured with a capacity that is not padded to"


def _graph_of_whole_recompute(granularity: str | None, impl: str, modules: str | Sequence[str]) -> str | None:
    if granularity != "full" or impl in ("none", FULL) or FULL in modules:
        return None
    return f"does not go with cuda_graph_impl={impl}"


def _graph_inside_recompute(
    again: Sequence[str] | None, granularity: str | None, impl: str, modules: str | Sequence[str]
) -> str | None:
    if granularity != "selective" or impl != "transformer_engine" or "moe" not in (again or ()):
        return None
    return "moe encloses the captured moe_router" if "moe_router" in _graphed(impl, modules) else None


def _graph_of_chance(
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
            return f"{name} draws its dropout of {dropout} again inside a captured graph"
    return None


def _kernels_there(
    rope: bool, permute: bool, fp8: str | None, fp4: str | None, engine: bool, gpu: str
) -> str | None:
    asked = {"apply_rope_fusion": rope, "moe_permute_fusion": permute, "fp8": fp8, "fp4": fp4}
    wanted = [name for name, on in asked.items() if on]
    if engine or not wanted:
        return None
    return f"{', '.join(wanted)} cannot be had on {gpu} without Transformer Engine"


_RECOMPUTE = ("recompute_modules", "recompute_granularity")
_GRAPH = ("cuda_graph_modules", "cuda_graph_impl")

RULES: tuple[Rule, ...] = (
    limit(
        "K01",
        ("recompute_num_layers", "recompute_granularity"),
        _selective_takes_no_layers,
        why="what is computed again is chosen by module",
        fix='Leave it unset, or set recompute_granularity to "full".',
        fails=(1, "selective"),
        passes=(None, "selective"),
    ),
    limit(
        "K02",
        (*_RECOMPUTE, "multi_latent_attention", "transformer"),
        _recompute_modules,
        why="Megatron Core knows these parts of the layers by name",
        fix="Use names from the list.",
        fails=(["mla_up_proj"], "selective", False, {}),
        passes=(["mlp", "core_attn"], "selective", False, {}),
    ),
    limit(
        "K03",
        (*_RECOMPUTE, "moe_grouped_gemm"),
        _activation_of_experts,
        why="only the grouped experts can compute their activation again by itself",
        fix="Set moe_grouped_gemm=true, or leave moe_act out.",
        fails=(["moe_act"], "selective", False),
        passes=(["moe_act"], "selective", True),
    ),
    limit(
        "K04",
        (*_RECOMPUTE, "moe_shared_expert_overlap", "moe_shared_expert_intermediate_size"),
        _shared_experts_again,
        why="they run in pieces while tokens are on their way",
        fix="Set moe_shared_expert_overlap=false, or leave shared_experts out.",
        fails=(["shared_experts"], "selective", True, 64),
        passes=(["shared_experts"], "selective", False, 64),
    ),
    limit(
        "K05",
        (*_RECOMPUTE, "fp8", "fp8_recipe"),
        _eight_bits_again,
        why="a second pass would enter its values into the history of the scales",
        fix="Use another fp8_recipe, or leave these modules out.",
        fails=(["layernorm"], "selective", "hybrid", "delayed"),
        passes=(["mlp"], "selective", "hybrid", "delayed"),
    ),
    limit(
        "K06",
        ("distribute_saved_activations", "sequence_parallel", "recompute_granularity"),
        _spread_activations,
        why="the inputs are split over the tensor-parallel ranks already",
        fix="Set distribute_saved_activations=false.",
        fails=(True, True, "selective"),
        passes=(False, True, "selective"),
    ),
    limit(
        "K07",
        ("fp8_param", "fp8"),
        _needs("fp8"),
        why="parameters are kept in 8 bits for GEMMs in 8 bits",
        fix="Set fp8, or unset fp8_param.",
        fails=(True, None),
        passes=(True, "hybrid"),
    ),
    limit(
        "K08",
        ("fp4_param", "fp4"),
        _needs("fp4"),
        why="parameters are kept in 4 bits for GEMMs in 4 bits",
        fix="Set fp4, or unset fp4_param.",
        fails=(True, None),
        passes=(True, "e2m1"),
    ),
    limit(
        "K09",
        ("fp8", "fp4"),
        _one_narrow_format,
        why="a GEMM has one format",
        fix="Unset one of them.",
        fails=("hybrid", "e2m1"),
        passes=(None, "e2m1"),
    ),
    limit(
        "K10",
        ("fp8_recipe", "fp8", "transformer"),
        _own_quantizer("8"),
        why="a custom recipe is a function of yours",
        fix="Name it there, as package.module.function, or use another fp8_recipe.",
        fails=("custom", "hybrid", {}),
        passes=("custom", "hybrid", {"fp8_quantizer_factory": "mine.quantizers.make"}),
    ),
    limit(
        "K11",
        ("fp4_recipe", "fp4", "transformer"),
        _own_quantizer("4"),
        why="a custom recipe is a function of yours",
        fix="Name it there, as package.module.function, or use another fp4_recipe.",
        fails=("custom", "e2m1", {}),
        passes=("custom", "e2m1", {"fp4_quantizer_factory": "mine.quantizers.make"}),
    ),
    limit(
        "K12",
        ("first_last_layers_bf16", "fp8", "fp8_recipe"),
        _outer_layers,
        why="delayed scales are kept for all layers or for none",
        fix="Use another fp8_recipe, or set first_last_layers_bf16=false.",
        fails=(True, "hybrid", "delayed"),
        passes=(True, "hybrid", "tensorwise"),
    ),
    limit(
        "K13",
        (
            "num_layers_at_start_in_bf16",
            "num_layers_at_end_in_bf16",
            "first_last_layers_bf16",
            "fp8",
            "num_layers",
            "pipeline_model_parallel_size",
        ),
        _outer_counts,
        why="the layers in bfloat16 are on the first and on the last stage",
        fix="Lower both numbers.",
        fails=(3, 1, True, "hybrid", 4, 2),
        passes=(2, 1, True, "hybrid", 4, 2),
    ),
    limit(
        "K14",
        ("num_moe_experts",),
        _some_experts,
        why="a layer with experts has at least one",
        fix="Set a positive number, or leave it unset for a dense model.",
        fails=(0,),
        passes=(4,),
    ),
    limit(
        "K15",
        (
            "num_moe_experts",
            "add_bias_linear",
            "expert_tensor_parallel_size",
            "tensor_model_parallel_size",
        ),
        _expert_bias,
        why="a bias would be added once by each rank",
        fix="Set add_bias_linear=false, or expert_tensor_parallel_size=1.",
        fails=(4, True, None, 2),
        passes=(4, True, 1, 2),
    ),
    limit(
        "K16",
        ("moe_shared_expert_intermediate_size",),
        _shared_width,
        why="an expert without width computes nothing",
        fix="Set a positive width, or leave it unset for no shared expert.",
        fails=(0,),
        passes=(None,),
    ),
    limit(
        "K17",
        ("moe_shared_expert_overlap", "moe_shared_expert_intermediate_size", "moe_token_dispatcher_type"),
        _shared_overlap,
        why="only these dispatchers leave time while tokens are on their way",
        fix="Set moe_token_dispatcher_type to alltoall or flex, or moe_shared_expert_overlap=false.",
        fails=(True, 64, "allgather"),
        passes=(True, 64, "alltoall"),
    ),
    limit(
        "K18",
        ("moe_router_load_balancing_type", "moe_aux_loss_coeff"),
        _a_loss_each,
        why="each kind of balancing has a weight of its own",
        fix="Give moe_aux_loss_coeff a list of the same length.",
        fails=(["aux_loss", "seq_aux_loss"], 0.1),
        passes=(["aux_loss", "seq_aux_loss"], [0.1, 0.1]),
    ),
    limit(
        "K19",
        ("moe_expert_capacity_factor", "moe_router_load_balancing_type"),
        _capacity,
        why="sinkhorn gives each expert its even share already",
        fix="Unset moe_expert_capacity_factor, or balance by a loss.",
        fails=(1.0, "sinkhorn"),
        passes=(1.0, "aux_loss"),
    ),
    limit(
        "K20",
        ("moe_pad_expert_input_to_capacity", "moe_expert_capacity_factor"),
        _padded_to_capacity,
        why="there is no capacity to fill up to",
        fix="Set moe_expert_capacity_factor, or moe_pad_expert_input_to_capacity=false.",
        fails=(True, None),
        passes=(True, 1.0),
    ),
    limit(
        "K21",
        ("moe_router_enable_expert_bias", "moe_router_score_function"),
        _score_bias,
        why="the bias is added to scores that do not depend on one another",
        fix="Set moe_router_score_function=sigmoid, or moe_router_enable_expert_bias=false.",
        fails=(True, "softmax"),
        passes=(True, "sigmoid"),
    ),
    limit(
        "K22",
        (
            "moe_router_topk",
            "moe_router_score_function",
            "moe_router_pre_softmax",
            "moe_router_load_balancing_type",
        ),
        _one_expert,
        why="it is 1 whatever the scores are",
        fix="Set moe_router_pre_softmax=true.",
        fails=(1, "softmax", False, "aux_loss"),
        passes=(1, "softmax", True, "aux_loss"),
    ),
    limit(
        "K23",
        ("moe_router_group_topk", "moe_router_num_groups", "num_moe_experts"),
        _groups,
        why="a token chooses groups of equal size first, and experts in them",
        fix="Set moe_router_num_groups to a divisor of num_moe_experts that is no smaller than moe_router_group_topk.",
        fails=(3, 2, 4),
        passes=(1, 2, 4),
    ),
    limit(
        "K24",
        ("bias_activation_fusion", "activation_func", "gated_linear_unit", "add_bias_linear"),
        _fused_activation,
        why="Megatron Core has these kernels only",
        fix="Set bias_activation_fusion=false.",
        fails=(True, "relu", False, True),
        passes=(True, "silu", True, False),
    ),
    limit(
        "K25",
        ("fused_residual_rmsnorm", "normalization"),
        _fused_norm,
        why="the fused kernel computes RMSNorm",
        fix="Set normalization=RMSNorm, or fused_residual_rmsnorm=false.",
        fails=(True, "LayerNorm"),
        passes=(True, "RMSNorm"),
    ),
    limit(
        "K26",
        ("fine_grained_activation_offloading", "transformer"),
        _something_to_offload,
        why="nothing is moved that is not named",
        fix="Name modules there, such as core_attn, or set fine_grained_activation_offloading=false.",
        fails=(True, {}),
        passes=(True, {"offload_modules": ["core_attn"]}),
    ),
    limit(
        "K27",
        (
            "num_layers",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
        ),
        _counted_split,
        why="embedding and output layer count as a layer each, and every stage has the same number",
        fix="Change num_layers, or count both or neither.",
        fails=(4, 2, None, True, False),
        passes=(4, 2, None, True, True),
    ),
    limit(
        "K28",
        (*_GRAPH, "num_moe_experts"),
        _graph_of_experts,
        why="one of them encloses the other, and both are parts of a layer with experts",
        fix="Name one of the two, and only in a model with experts.",
        fails=(["moe_router"], "transformer_engine", None),
        passes=(["moe_router"], "transformer_engine", 4),
    ),
    limit(
        "K29",
        _GRAPH,
        _graph_of_dispatch,
        why="what is prepared is the router's choice",
        fix="Name moe_router too.",
        fails=(["moe_preprocess"], "transformer_engine"),
        passes=(["attn"], "transformer_engine"),
    ),
    limit(
        "K30",
        (*_GRAPH, "num_moe_experts", "moe_layer_freq"),
        _graph_of_dense_parts,
        why="no layer has a dense MLP",
        fix="Leave mlp out.",
        fails=(["mlp"], "transformer_engine", 4, 1),
        passes=(["mlp"], "transformer_engine", 4, 2),
    ),
    limit(
        "K31",
        (*_GRAPH, "num_moe_experts", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
        _graph_of_dropping_experts,
        why="a graph has shapes that do not change from step to step",
        fix="Set both, or capture moe_router instead.",
        fails=(["moe"], "transformer_engine", 4, None, False),
        passes=(["moe"], "transformer_engine", 4, 1.0, True),
    ),
    limit(
        "K32",
        (
            *_GRAPH,
            "num_moe_experts",
            "moe_expert_capacity_factor",
            "moe_pad_expert_input_to_capacity",
            "moe_token_dispatcher_type",
        ),
        _graph_of_waiting_dispatch,
        why="it waits for numbers of tokens to come to the host",
        fix="Leave moe_preprocess out, or set moe_pad_expert_input_to_capacity=true.",
        fails=(["moe_router", "moe_preprocess"], "transformer_engine", 4, 1.0, False, "alltoall"),
        passes=(["moe_router", "moe_preprocess"], "transformer_engine", 4, 1.0, True, "alltoall"),
    ),
    limit(
        "K33",
        ("recompute_granularity", "cuda_graph_impl", "cuda_graph_modules"),
        _graph_of_whole_recompute,
        why="whole layers are computed again outside of their graphs",
        fix='Set cuda_graph_impl to "full_iteration" or "none", or recompute_granularity to "selective".',
        fails=("full", "transformer_engine", "full"),
        passes=("full", "none", "full"),
    ),
    limit(
        "K34",
        (*_RECOMPUTE, "cuda_graph_impl", "cuda_graph_modules"),
        _graph_inside_recompute,
        why="a graph cannot be a part of what is computed again",
        fix="Leave moe out of recompute_modules, or moe_router out of cuda_graph_modules.",
        fails=(["moe"], "selective", "transformer_engine", ["attn", "moe_router"]),
        passes=(["layernorm"], "selective", "transformer_engine", ["attn"]),
    ),
    limit(
        "K35",
        (*_RECOMPUTE, "cuda_graph_impl", "cuda_graph_modules", "attention_dropout", "hidden_dropout"),
        _graph_of_chance,
        why="random numbers inside a graph cannot be drawn a second time",
        fix="Set the dropout to 0, or leave the module out of recompute_modules.",
        fails=(None, "selective", "full_iteration", "full", 0.1, 0.0),
        passes=(None, "selective", "full_iteration", "full", 0.0, 0.1),
    ),
)
"""Megatron Core's own conditions on the fields of a model section."""

_KERNELS = (
    "model.apply_rope_fusion",
    "model.moe_permute_fusion",
    "model.fp8",
    "model.fp4",
    "facts.transformer_engine",
    "facts.gpu",
)

KERNELS = Rule(
    id="K36",
    fields=_KERNELS,
    test=_kernels_there,
    why="these kernels are Transformer Engine's",
    fix="Install Transformer Engine, or unset them.",
    fails=dict(zip(_KERNELS, (True, False, None, None, False, "h100"), strict=True)),
    passes=dict(zip(_KERNELS, (True, False, None, None, True, "h100"), strict=True)),
)
"""A condition on the machine that is meant. Without a GPU the fusions are replaced when the model is built."""
