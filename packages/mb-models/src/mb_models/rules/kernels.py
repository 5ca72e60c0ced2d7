"""Rules on settings that need a module of Apex, or layers other than Megatron's own.

Megatron Core fails on them when the model is built or in the first step, or ignores them. Rules on settings that only
affect speed have a fallback. Without a GPU these settings are replaced when the model is built, and no rule applies.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType

from mb_models.rules import transformer_engine as te_rules
from mb_schema.rule_kinds import model_rule
from mb_schema.rules import Rule

KERNEL_MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "apex_installed": ("apex",),
        "fused_weight_gradient_installed": ("fused_weight_gradient_mlp_cuda",),
        "fused_softmax_installed": (
            "scaled_masked_softmax_cuda",
            "scaled_softmax_cuda",
            "scaled_upper_triang_masked_softmax_cuda",
        ),
    }
)
"""Fact -> modules that Megatron Core imports for it, all of them parts of Apex with its CUDA extensions."""


def kernel_facts(*, find: Callable[[str], object] = find_spec) -> dict[str, bool]:
    """Return the facts of `KERNEL_MODULES` for this process; imports nothing.

    Args:
        find: returns None for a module that cannot be imported.
    """
    return {fact: all(find(name) is not None for name in modules) for fact, modules in KERNEL_MODULES.items()}


_USE_TE_LAYERS = "Set model.transformer_impl=transformer_engine"


@model_rule(
    "KN04",
    why="the output layer is Megatron's own, and accumulates gradients inside its GEMM with that kernel of Apex",
    fix="Install Apex with its CUDA extensions (if the run has them, check with --apex), or set "
    "model.gradient_accumulation_fusion=false.",
    fails={"gradient_accumulation_fusion": True},
    passes={"fused_weight_gradient_installed": True},
    fallback={"gradient_accumulation_fusion": False},
)
def _gradient_accumulation_kernel_missing(
    gradient_accumulation_fusion, *, fused_weight_gradient_installed, cpu
):
    if gradient_accumulation_fusion and not fused_weight_gradient_installed and not cpu:
        return "is on, but fused_weight_gradient_mlp_cuda is not installed"
    return None


@model_rule(
    "KN05",
    why="the attention of local layers uses that kernel of Apex, and fails in the first step without it",
    fix="Install Apex with its CUDA extensions (if the run has them, check with --apex), or set "
    "model.masked_softmax_fusion=false.",
    fails={"masked_softmax_fusion": True, "transformer_impl": "local"},
    passes={"transformer_impl": "transformer_engine"},
    fallback={"masked_softmax_fusion": False},
)
def _softmax_kernel_missing(masked_softmax_fusion, transformer_impl, *, fused_softmax_installed, cpu):
    if not masked_softmax_fusion or transformer_impl != "local" or fused_softmax_installed or cpu:
        return None
    return "is on with transformer_impl=local, but scaled_masked_softmax_cuda is not installed"


def torch_norm(layers: str | None, normalization: str | None, apex: bool, cpu: bool) -> str | None:
    """Return the reason why the norms of local layers are torch's, or None if they are not."""
    if layers != "local" or cpu or (apex and normalization == "LayerNorm"):
        return None
    return "Apex is not installed" if normalization == "LayerNorm" else f"normalization={normalization}"


@model_rule(
    "KN06",
    why="the persistent kernel belongs to Apex's LayerNorm",
    fix="Set model.persist_layer_norm=false, or install Apex for normalization=LayerNorm.",
    fails={
        "persist_layer_norm": True,
        "transformer_impl": "local",
        "normalization": "RMSNorm",
        "apex_installed": True,
    },
    passes={"normalization": "LayerNorm"},
    fallback={"persist_layer_norm": False},
)
def _persistent_norm_with_torch_norms(
    persist_layer_norm, transformer_impl, normalization, *, apex_installed, cpu
):
    reason = torch_norm(transformer_impl, normalization, apex_installed, cpu)
    if persist_layer_norm and reason:
        return f"is on with transformer_impl=local and torch's norms ({reason})"
    return None


def _needs_sequence_parallel(experts: int | None, tp: int | None) -> bool:
    return bool(experts) and (tp or 1) > 1


@model_rule(
    "KN07",
    why="torch's norms do not mark the gradients that sequence parallelism sums over the ranks",
    fix=f"{_USE_TE_LAYERS}, or model.sequence_parallel=false.",
    fails={"sequence_parallel": True, "transformer_impl": "local", "normalization": "RMSNorm"},
    passes={"transformer_impl": "transformer_engine"},
    fallback={"sequence_parallel": False},
)
def _sequence_parallel_with_torch_norms(
    sequence_parallel, num_moe_experts, tp, transformer_impl, normalization, *, apex_installed, cpu
):
    reason = torch_norm(transformer_impl, normalization, apex_installed, cpu)
    if not sequence_parallel or reason is None or _needs_sequence_parallel(num_moe_experts, tp):
        return None
    return f"is on with transformer_impl=local and torch's norms ({reason})"


@model_rule(
    "KN08",
    why="experts under tensor parallelism need sequence parallelism, which torch's norms do not support",
    fix=f"{_USE_TE_LAYERS}, or model.tensor_model_parallel_size=1.",
    fails={"num_moe_experts": 8, "tp": 2, "transformer_impl": "local", "normalization": "RMSNorm"},
    passes={"tp": 1},
)
def _experts_need_sequence_parallel_with_torch_norms(
    num_moe_experts, tp, transformer_impl, normalization, *, apex_installed, cpu
):
    reason = torch_norm(transformer_impl, normalization, apex_installed, cpu)
    if reason is None or not _needs_sequence_parallel(num_moe_experts, tp):
        return None
    return f"is {num_moe_experts} with tp={tp}, transformer_impl=local and torch's norms ({reason})"


@model_rule(
    "KN09",
    why="Megatron's own attention needs complete sequences",
    fix=f"{_USE_TE_LAYERS}, or model.context_parallel_size=1.",
    fails={"cp": 2, "transformer_impl": "local"},
    passes={"transformer_impl": "transformer_engine"},
)
def _context_parallel_with_local_layers(cp, transformer_impl, *, cpu):
    if (cp or 1) > 1 and transformer_impl == "local" and not cpu:
        return f"is {cp} with transformer_impl=local"
    return None


def _switch_without_effect_on_local_layers(on, transformer_impl, *, cpu):
    return "is on with transformer_impl=local" if on and transformer_impl == "local" and not cpu else None


@model_rule(
    "KN11",
    why="local layers have a single attention implementation, Megatron's own",
    fix=f"{_USE_TE_LAYERS}, or model.attention_backend=auto.",
    fails={"attention_backend": "flash", "transformer_impl": "local"},
    passes={"attention_backend": "auto"},
    fallback={"attention_backend": "auto"},
)
def _attention_kernel_with_local_layers(attention_backend, transformer_impl, *, cpu):
    if attention_backend not in ("flash", "fused") or transformer_impl != "local" or cpu:
        return None
    return f"is {attention_backend} with transformer_impl=local"


TE_FIELDS = ("cpu_offloading", "fused_single_qkv_rope", "overlap_dispatch_backward_with_experts_wgrad")
TE_LAYER_FIELDS = ("use_te_activation_func", "use_transformer_engine_op_fuser")
"""Fields of TransformerConfig, not in the section, that need the package Transformer Engine or its layers."""


@model_rule(
    "KN12",
    why="these settings select kernels of Transformer Engine or Apex",
    fix="Remove them, or install the package and use its layers.",
    fails={
        "transformer": {"use_te_activation_func": True},
        "transformer_impl": "local",
        "transformer_engine": True,
    },
    passes={"transformer_impl": "transformer_engine"},
)
def _transformer_fields_without_kernels(
    transformer, transformer_impl, normalization, *, transformer_engine, apex_installed, cpu
):
    if cpu:
        return None
    missing = [name for name in TE_FIELDS if transformer.get(name) and not transformer_engine]
    missing += [name for name in TE_LAYER_FIELDS if transformer.get(name) and transformer_impl == "local"]
    if transformer.get("memory_efficient_layer_norm") and torch_norm(
        transformer_impl, normalization, apex_installed, cpu
    ):
        missing.append("memory_efficient_layer_norm")
    state = "installed" if transformer_engine else "not installed"
    where = f"transformer_impl={transformer_impl}, Transformer Engine is {state}"
    return f"{', '.join(missing)} not available ({where})" if missing else None


APEX: tuple[Rule, ...] = (
    _gradient_accumulation_kernel_missing,
    _softmax_kernel_missing,
    _persistent_norm_with_torch_norms,
    _sequence_parallel_with_torch_norms,
    _experts_need_sequence_parallel_with_torch_norms,
)
"""Rules on settings that need a module of Apex, on local layers or on any."""


@model_rule(
    "T43",
    why="on a GPU only Transformer Engine has layers for it",
    fix="Install transformer-engine and leave model.transformer_impl at transformer_engine.",
    fails={"transformer_impl": "local", "multi_latent_attention": True},
    passes={"cpu": True},
)
def _family_without_local_layers(
    transformer_impl, multi_latent_attention, hybrid_layer_pattern, decoder_seq_length, *, cpu
):
    kinds = {
        "multi-latent attention": multi_latent_attention,
        "a hybrid": hybrid_layer_pattern,
        "a T5": decoder_seq_length,
    }
    requested = [kind for kind, value in kinds.items() if value]
    if transformer_impl == "local" and not cpu and requested:
        return f"is local for {' and '.join(requested)}"
    return None


LOCAL: tuple[Rule, ...] = (
    _context_parallel_with_local_layers,
    model_rule(
        "KN10",
        paths={"on": "model.tp_comm_overlap"},
        why="the overlapped GEMMs belong to Transformer Engine's layers",
        fix=f"{_USE_TE_LAYERS}, or model.tp_comm_overlap=false.",
        fails={"on": True, "transformer_impl": "local"},
        passes={"transformer_impl": "transformer_engine"},
        fallback={"on": False},
    )(_switch_without_effect_on_local_layers),
    model_rule(
        "KN14",
        paths={"on": "model.moe_grouped_gemm"},
        why="on a GPU the grouped GEMM is Transformer Engine's, and Megatron's local layers ignore the switch",
        fix=f"{_USE_TE_LAYERS}, or model.moe_grouped_gemm=false.",
        fails={"on": True, "transformer_impl": "local"},
        passes={"transformer_impl": "transformer_engine"},
        fallback={"on": False},
    )(_switch_without_effect_on_local_layers),
    _attention_kernel_with_local_layers,
    _transformer_fields_without_kernels,
    _family_without_local_layers,
)
"""Rules on settings that local layers do not support."""

RULES: tuple[Rule, ...] = (*te_rules.RULES, *APEX, *LOCAL)
"""Rules on kernels that are not part of Megatron Core."""

FALLBACKS: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.fallback)
"""Rules with fallbacks, in the order in which they are applied."""
