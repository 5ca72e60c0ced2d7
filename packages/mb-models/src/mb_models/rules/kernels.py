"""Rules on settings that need a module of Apex, or layers other than Megatron's own.

Megatron Core fails on them when the model is built or in the first step, or ignores them. Rules on settings that only
affect speed have a fallback. Without a GPU these settings are replaced when the model is built, and no rule applies.
"""

from collections.abc import Mapping

from mb_models.rules import transformer_engine as te_rules
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

_ENGINE, _LAYERS, _CPU = "facts.transformer_engine", "model.transformer_impl", "facts.cpu"
_NORMS = (_LAYERS, "model.normalization", "facts.apex_installed", _CPU)

_USE_TE_LAYERS = "Set model.transformer_impl=transformer_engine"


def _gradient_accumulation_kernel_missing(on: bool | None, installed: bool, cpu: bool) -> str | None:
    return (
        "is on, but fused_weight_gradient_mlp_cuda is not installed"
        if on and not installed and not cpu
        else None
    )


def _softmax_kernel_missing(on: bool | None, layers: str | None, installed: bool, cpu: bool) -> str | None:
    if not on or layers != "local" or installed or cpu:
        return None
    return "is on with transformer_impl=local, but scaled_masked_softmax_cuda is not installed"


def torch_norm(layers: str | None, normalization: str | None, apex: bool, cpu: bool) -> str | None:
    """Return the reason why the norms of local layers are torch's, or None if they are not."""
    if layers != "local" or cpu or (apex and normalization == "LayerNorm"):
        return None
    return "Apex is not installed" if normalization == "LayerNorm" else f"normalization={normalization}"


def _persistent_norm_with_torch_norms(
    on: bool | None, layers: str | None, normalization: str | None, apex: bool, cpu: bool
) -> str | None:
    reason = torch_norm(layers, normalization, apex, cpu)
    return f"is on with transformer_impl=local and torch's norms ({reason})" if on and reason else None


def _needs_sequence_parallel(experts: int | None, tp: int | None) -> bool:
    """Return whether experts need sequence parallelism in this layout."""
    return bool(experts) and (tp or 1) > 1


def _sequence_parallel_with_torch_norms(
    on: bool | None,
    experts: int | None,
    tp: int | None,
    layers: str | None,
    normalization: str | None,
    apex: bool,
    cpu: bool,
) -> str | None:
    reason = torch_norm(layers, normalization, apex, cpu)
    if not on or reason is None or _needs_sequence_parallel(experts, tp):
        return None
    return f"is on with transformer_impl=local and torch's norms ({reason})"


def _experts_need_sequence_parallel_with_torch_norms(
    experts: int | None,
    tp: int | None,
    layers: str | None,
    normalization: str | None,
    apex: bool,
    cpu: bool,
) -> str | None:
    reason = torch_norm(layers, normalization, apex, cpu)
    if reason is None or not _needs_sequence_parallel(experts, tp):
        return None
    return f"is {experts} with tp={tp}, transformer_impl=local and torch's norms ({reason})"


def _context_parallel_with_local_layers(cp: int | None, layers: str | None, cpu: bool) -> str | None:
    return f"is {cp} with transformer_impl=local" if (cp or 1) > 1 and layers == "local" and not cpu else None


def _switch_without_effect_on_local_layers(on: bool | None, layers: str | None, cpu: bool) -> str | None:
    return "is on with transformer_impl=local" if on and layers == "local" and not cpu else None


def _attention_kernel_with_local_layers(kernel: str | None, layers: str | None, cpu: bool) -> str | None:
    if kernel not in ("flash", "fused") or layers != "local" or cpu:
        return None
    return f"is {kernel} with transformer_impl=local"


TE_FIELDS = ("cpu_offloading", "fused_single_qkv_rope", "overlap_dispatch_backward_with_experts_wgrad")
TE_LAYER_FIELDS = ("use_te_activation_func", "use_transformer_engine_op_fuser")
"""Fields of TransformerConfig, not in the section, that need the package Transformer Engine or its layers."""


def _transformer_fields_without_kernels(
    extra: Mapping[str, object],
    layers: str | None,
    normalization: str | None,
    engine: bool,
    apex: bool,
    cpu: bool,
) -> str | None:
    if cpu:
        return None
    missing = [name for name in TE_FIELDS if extra.get(name) and not engine]
    missing += [name for name in TE_LAYER_FIELDS if extra.get(name) and layers == "local"]
    if extra.get("memory_efficient_layer_norm") and torch_norm(layers, normalization, apex, cpu):
        missing.append("memory_efficient_layer_norm")
    where = f"transformer_impl={layers}, Transformer Engine is {'' if engine else 'not '}installed"
    return f"{', '.join(missing)} not available ({where})" if missing else None


APEX: tuple[Rule, ...] = (
    rule(
        "KN04",
        ("model.gradient_accumulation_fusion", "facts.fused_weight_gradient_installed", _CPU),
        _gradient_accumulation_kernel_missing,
        why="the output layer is Megatron's own, and accumulates gradients inside its GEMM with that kernel of Apex",
        fix="Install Apex with its CUDA extensions (if the run has them, check with --apex), or set "
        "model.gradient_accumulation_fusion=false.",
        fails=(True, False, False),
        passes=(True, True, False),
        fallback={"model.gradient_accumulation_fusion": False},
    ),
    rule(
        "KN05",
        ("model.masked_softmax_fusion", _LAYERS, "facts.fused_softmax_installed", _CPU),
        _softmax_kernel_missing,
        why="the attention of local layers uses that kernel of Apex, and fails in the first step without it",
        fix="Install Apex with its CUDA extensions (if the run has them, check with --apex), or set "
        "model.masked_softmax_fusion=false.",
        fails=(True, "local", False, False),
        passes=(True, "transformer_engine", False, False),
        fallback={"model.masked_softmax_fusion": False},
    ),
    rule(
        "KN06",
        ("model.persist_layer_norm", *_NORMS),
        _persistent_norm_with_torch_norms,
        why="the persistent kernel belongs to Apex's LayerNorm",
        fix="Set model.persist_layer_norm=false, or install Apex for normalization=LayerNorm.",
        fails=(True, "local", "RMSNorm", True, False),
        passes=(True, "local", "LayerNorm", True, False),
        fallback={"model.persist_layer_norm": False},
    ),
    rule(
        "KN07",
        (
            "model.sequence_parallel",
            "model.num_moe_experts",
            "model.tensor_model_parallel_size",
            *_NORMS,
        ),
        _sequence_parallel_with_torch_norms,
        why="torch's norms do not mark the gradients that sequence parallelism sums over the ranks",
        fix=f"{_USE_TE_LAYERS}, or model.sequence_parallel=false.",
        fails=(True, None, 2, "local", "RMSNorm", False, False),
        passes=(True, None, 2, "transformer_engine", "RMSNorm", False, False),
        fallback={"model.sequence_parallel": False},
    ),
    rule(
        "KN08",
        ("model.num_moe_experts", "model.tensor_model_parallel_size", *_NORMS),
        _experts_need_sequence_parallel_with_torch_norms,
        why="experts under tensor parallelism need sequence parallelism, which torch's norms do not support",
        fix=f"{_USE_TE_LAYERS}, or model.tensor_model_parallel_size=1.",
        fails=(8, 2, "local", "RMSNorm", False, False),
        passes=(8, 1, "local", "RMSNorm", False, False),
    ),
)
"""Rules on settings that need a module of Apex, on local layers or on any."""

_LOCAL_ONLY_ON_CPU = (
    _LAYERS,
    _CPU,
    "model.multi_latent_attention",
    "model.hybrid_layer_pattern",
    "model.decoder_seq_length",
)


def _family_without_local_layers(
    implementation: str, cpu: bool, latent: bool | None, pattern: str | None, decoder_length: int | None
) -> str | None:
    kinds = {"multi-latent attention": latent, "a hybrid": pattern, "a T5": decoder_length}
    requested = [kind for kind, value in kinds.items() if value]
    return (
        f"is local for {' and '.join(requested)}"
        if implementation == "local" and not cpu and requested
        else None
    )


LOCAL: tuple[Rule, ...] = (
    rule(
        "KN09",
        ("model.context_parallel_size", _LAYERS, _CPU),
        _context_parallel_with_local_layers,
        why="Megatron's own attention needs complete sequences",
        fix=f"{_USE_TE_LAYERS}, or model.context_parallel_size=1.",
        fails=(2, "local", False),
        passes=(2, "transformer_engine", False),
    ),
    rule(
        "KN10",
        ("model.tp_comm_overlap", _LAYERS, _CPU),
        _switch_without_effect_on_local_layers,
        why="the overlapped GEMMs belong to Transformer Engine's layers",
        fix=f"{_USE_TE_LAYERS}, or model.tp_comm_overlap=false.",
        fails=(True, "local", False),
        passes=(True, "transformer_engine", False),
        fallback={"model.tp_comm_overlap": False},
    ),
    rule(
        "KN11",
        ("model.attention_backend", _LAYERS, _CPU),
        _attention_kernel_with_local_layers,
        why="local layers have a single attention implementation, Megatron's own",
        fix=f"{_USE_TE_LAYERS}, or model.attention_backend=auto.",
        fails=("flash", "local", False),
        passes=("auto", "local", False),
        fallback={"model.attention_backend": "auto"},
    ),
    rule(
        "KN12",
        ("model.transformer", _LAYERS, "model.normalization", _ENGINE, "facts.apex_installed", _CPU),
        _transformer_fields_without_kernels,
        why="these settings select kernels of Transformer Engine or Apex",
        fix="Remove them, or install the package and use its layers.",
        fails=({"use_te_activation_func": True}, "local", "RMSNorm", True, False, False),
        passes=({"use_te_activation_func": True}, "transformer_engine", "RMSNorm", True, False, False),
    ),
    rule(
        "T43",
        _LOCAL_ONLY_ON_CPU,
        _family_without_local_layers,
        why="on a GPU only Transformer Engine has layers for it",
        fix="Install transformer-engine and leave model.transformer_impl at transformer_engine.",
        fails=("local", False, True, None, None),
        passes=("local", True, True, None, None),
    ),
)
"""Rules on settings that local layers do not support."""

GROUPED_GEMM = rule(
    "G06",
    ("model.moe_grouped_gemm", _LAYERS, _CPU),
    _switch_without_effect_on_local_layers,
    why="the grouped GEMM is Transformer Engine's",
    fix="Set model.moe_grouped_gemm=false.",
    fails=(True, "local", False),
    passes=(True, "transformer_engine", False),
    fallback={"model.moe_grouped_gemm": False},
)
"""The part of rule G06 that has a fallback."""

RULES: tuple[Rule, ...] = (*te_rules.RULES, *APEX, *LOCAL)
"""Rules on kernels that are not part of Megatron Core."""

FALLBACKS: tuple[Rule, ...] = tuple(rule for rule in (*RULES, GROUPED_GEMM) if rule.fallback)
"""Rules with fallbacks, in the order in which they are applied."""
