"""Rules on model sections, for a check before launch and again when the model is built."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.errors import ModelConfigError
from mb_models.hybrid import rules as hybrid_rules
from mb_models.mimo import rules as mimo_rules
from mb_models.peft import rules as peft_rules
from mb_models.rules import cuda_graphs as cuda_graph_rules
from mb_models.rules import fsdp as fsdp_rules
from mb_models.rules import kernels as kernel_rules
from mb_models.rules import layer_variants as layer_variant_rules
from mb_models.rules import layers as layer_rules
from mb_models.rules import moe as moe_rules
from mb_models.rules import parallelism as parallelism_rules
from mb_models.rules import precision as precision_rules
from mb_models.rules import recompute as recompute_rules
from mb_models.rules import sizes as size_rules
from mb_models.rules import variants as variant_rules
from mb_models.rules import widths as width_rules
from mb_models.rules.widths import has_attention
from mb_models.t5 import rules as t5_rules
from mb_schema.rule_kinds import SET, implied_by, no_effect, requires, rule, within
from mb_schema.rules import Problem, Rule, check

__all__ = ["BUILD_RULES", "INTERLEAVING", "RULES", "ModelConfigError", "Rule", "violated_rules"]


def violated_rules(rules: Iterable[Rule], values: Mapping[str, object]) -> list[Problem]:
    """Return the rules of severity "error" among `rules` that `values` (field path -> value) violate.

    A rule applies if `values` hold the first of its paths, and any path of each section that it reads; a missing path
    reads as None.
    """
    sections: dict[str, Any] = {path: value for path, value in values.items() if "." not in path}
    for path, value in values.items():
        section, _, name = path.partition(".")
        if name:
            sections.setdefault(section, {})[name] = value
    problems = check(sections, rules, facts=sections.pop("facts", {}))
    return [problem for problem in problems if problem.severity == "error"]


IGNORED_BY_LOCAL_LAYERS = (
    "qk_l2_norm",
    "qk_clip",
    "log_max_attention_logit",
    "fused_residual_rmsnorm",
    "moe_grouped_gemm",
)
"""Switches that only Transformer Engine's layers support."""

UNSUPPORTED_FIELDS = {
    "experimental_attention_variant": "its layers need a separate block specification",
    "heterogeneous_block_specs": "layers of different shapes need a separate configuration class",
    "is_hybrid_model": "hybrid models are another class",
    "init_model_with_meta_device": "parameters are created on their device",
    "hybrid_context_parallel": "every sequence is split over all context-parallel ranks",
    "use_mup": "the optimizer's learning rates are not scaled by width",
}
"""Fields of Megatron's TransformerConfig that the GPT provider does not support, and the reason."""


def _positive_sizes(layers: int, hidden: int, heads: int) -> str | None:
    if min(layers, hidden, heads) >= 1:
        return None
    return f"every size must be at least 1 (num_layers={layers}, hidden_size={hidden}, num_attention_heads={heads})"


def _heads_divide_hidden(
    hidden: int, heads: int, kv_channels: int | None, latent: bool | None, pattern: str | None
) -> str | None:
    if latent or kv_channels is not None or heads < 1 or hidden % heads == 0 or not has_attention(pattern):
        return None
    return f"must be divisible by the heads (hidden_size={hidden}, num_attention_heads={heads}, kv_channels unset)"


def _positions_reach(positions: int | None, seq_length: int) -> str | None:
    if positions is None or positions >= seq_length:
        return None
    return (
        f"is shorter than a training sequence (max_position_embeddings={positions}, seq_length={seq_length})"
    )


def _known_positions(kind: str) -> str | None:
    return f"{kind!r} is not supported" if kind == "mrope" else None


def _local_layers_support(impl: str, *switches: bool) -> str | None:
    ignored = [name for name, on in zip(IGNORED_BY_LOCAL_LAYERS, switches, strict=True) if on]
    if impl != "local" or not ignored:
        return None
    return f"local layers ignore {', '.join(ignored)}"


def _local_layers_precision(impl: str, fp8: str | None, fp4: str | None) -> str | None:
    return (
        f"local layers cannot compute in fp8={fp8}, fp4={fp4}" if impl == "local" and (fp8 or fp4) else None
    )


def _local_residual(impl: str, fp32_residual: bool, bf16: bool, fp16: bool) -> str | None:
    if impl != "local" or not fp32_residual or not (bf16 or fp16):
        return None
    return f"local layers cannot keep a float32 residual stream (bf16={bf16}, fp16={fp16})"


def _transformer_names(
    extra: Mapping[str, object], layers: int | None, kind: str | None, latent: bool | None
) -> str | None:
    own = sorted({item.name for item in fields(GPTModelConfig)} & extra.keys())
    if own:
        return f"{', '.join(own)}: set the field of the model section itself"
    private = sorted(name for name in extra if name.startswith("_"))
    if private:
        return f"{', '.join(private)}: private to Megatron"
    unsupported = [f"{name}: {why}" for name, why in UNSUPPORTED_FIELDS.items() if extra.get(name)]
    every = extra.get("no_rope_freq")
    if every and (kind not in ("rope", "yarn") or latent):
        unsupported.append(
            f"no_rope_freq: no layer is rotated with position_embedding_type={kind}, latent={latent}"
        )
    elif isinstance(every, int) and layers and (every < 0 or layers % every):
        unsupported.append(f"no_rope_freq: {every} does not divide {layers} layers")
    elif isinstance(every, Sequence) and len(every) != layers:
        unsupported.append(f"no_rope_freq: lists {len(every)} layers of {layers}")
    return "; ".join(unsupported) or None


def _topk_fits(topk: int, experts: int | None) -> str | None:
    if experts is None or 1 <= topk <= experts:
        return None
    return f"a token cannot use that many experts (moe_router_topk={topk}, num_moe_experts={experts})"


def _interleaving_is_safe(vpp: int | None, pp: int, overlap: bool, batch: bool) -> str | None:
    if vpp is None or vpp == 1 or pp == 1 or (overlap and not batch) or (pp > 2 and not overlap):
        return None
    return f"the exchange would mix up microbatches (pp={pp}, overlap_p2p_comm={overlap}, batch_p2p_comm={batch})"


_OVER_ALL_TOKENS = ("sinkhorn", "quantile_balancing")


def _dropout_on_parts(cp: int | None, hidden: float | None, attention: float | None) -> str | None:
    if (cp or 1) == 1 or not (hidden or attention):
        return None
    return f"cannot be combined with dropout (hidden {hidden}, attention {attention}, context_parallel_size={cp})"


def _graph_of_padding(
    impl: str | None, modules: str | Sequence[str] | None, experts: int | None, root: object
) -> str | None:
    chosen = [modules] if isinstance(modules, str) else list(modules or ())
    routed = not chosen or {"full", "moe", "moe_router", "moe_preprocess"} & {*chosen}
    if impl != "transformer_engine" or not experts or root is None or not routed:
        return None
    return f"captures routers (cuda_graph_modules={modules}), whose input has padding in fine-tuning"


def _mask_without_effect(
    reset: bool | None, skipped: bool | None, created: bool | None, implementation: str | None
) -> str | None:
    if not reset:
        return None
    if skipped or not created:
        return (
            "has no effect: no mask is passed to the model "
            f"(skip_getting_attention_mask_from_dataset={skipped}, create_attention_mask={created})"
        )
    if implementation == "transformer_engine":
        return "has no effect: causal attention of Transformer Engine ignores masks"
    return None


RULES: tuple[Rule, ...] = (
    rule(
        "G01",
        within("model", "num_layers hidden_size num_attention_heads"),
        _positive_sizes,
        why="a model without layers, width or heads cannot be built",
        fix="Set all three to positive numbers.",
        fails=(0, 64, 4),
        passes=(2, 64, 4),
    ),
    rule(
        "G03",
        within(
            "model", "hidden_size num_attention_heads kv_channels multi_latent_attention hybrid_layer_pattern"
        ),
        _heads_divide_hidden,
        why="the width of a head is hidden_size / num_attention_heads unless kv_channels is set",
        fix="Change hidden_size or num_attention_heads, or set kv_channels.",
        fails=(100, 8, None, False, None),
        passes=(100, 8, 16, False, None),
    ),
    rule(
        "G04",
        within("model", "max_position_embeddings seq_length"),
        _positions_reach,
        why="every position of a training sequence needs an embedding",
        fix="Raise max_position_embeddings to seq_length, or leave it unset.",
        fails=(512, 1024),
        passes=(2048, 1024),
    ),
    rule(
        "G05",
        "model.position_embedding_type",
        _known_positions,
        why="it needs three rows of position ids, which text batches do not have",
        fix='Use "rope", "yarn", "learned_absolute" or "none".',
        fails=("mrope",),
        passes=("rope",),
    ),
    Rule(
        id="G06",
        fields=("model.transformer_impl", *(f"model.{name}" for name in IGNORED_BY_LOCAL_LAYERS)),
        test=_local_layers_support,
        why="only Transformer Engine supports them, and Megatron builds the model as if they were off",
        fix='Switch them off, or use transformer_impl "transformer_engine" on a GPU.',
        fails={
            "model.transformer_impl": "local",
            **{f"model.{name}": name == "qk_clip" for name in IGNORED_BY_LOCAL_LAYERS},
        },
        passes={
            "model.transformer_impl": "transformer_engine",
            **{f"model.{name}": name == "qk_clip" for name in IGNORED_BY_LOCAL_LAYERS},
        },
    ),
    rule(
        "G07",
        within("model", "transformer_impl fp8 fp4"),
        _local_layers_precision,
        why="8-bit and 4-bit arithmetic needs Transformer Engine",
        fix='Unset fp8 and fp4, or use transformer_impl "transformer_engine" on a GPU.',
        fails=("local", "hybrid", None),
        passes=("local", None, None),
    ),
    rule(
        "G08",
        within("model", "transformer_impl fp32_residual_connection bf16 fp16"),
        _local_residual,
        why="their linear layers only accept inputs of the parameters' type",
        fix="Switch fp32_residual_connection off.",
        fails=("local", True, True, False),
        passes=("local", True, False, False),
    ),
    rule(
        "G09",
        within("model", "transformer num_layers position_embedding_type multi_latent_attention"),
        _transformer_names,
        why="it only holds fields of Megatron's TransformerConfig that the section lacks and a GPT supports",
        fix="Remove or correct them.",
        fails=({"use_mup": True}, 4, "rope", False),
        passes=({"glu_linear_offset": 1.0, "no_rope_freq": [0, 0, 0, 1]}, 4, "rope", False),
    ),
    rule(
        "G11",
        within("model", "moe_router_topk num_moe_experts"),
        _topk_fits,
        why="the router selects among the existing experts",
        fix="Lower moe_router_topk or raise num_moe_experts.",
        fails=(3, 2),
        passes=(2, 2),
    ),
    no_effect(
        "G12",
        "model.num_moe_experts",
        {"model.moe_ffn_hidden_size": None, "model.moe_shared_expert_intermediate_size": None},
        why="without num_moe_experts the model is dense",
        fix="Set num_moe_experts, or unset the sizes.",
        fails=(None, 64, None),
        passes=(4, 64, None),
    ),
    requires(
        "G13",
        {"model.recompute_granularity": "full"},
        {"model.recompute_method": SET, "model.recompute_num_layers": SET},
        why="Megatron needs the layers to recompute, and their number per group",
        fix='Set recompute_method to "uniform" or "block", and recompute_num_layers.',
        fails=("full", None, 1),
        passes=("full", "uniform", 1),
    ),
    implied_by(
        "D58",
        rule(
            "G26",
            "dataset.inter_document_masking",
            lambda masking: "the documents of a sample would be packed sequences" if masking else None,
            why="the forward steps reject packed sequences: attention would cross their boundaries",
            fix="Set dataset.inter_document_masking=false.",
            fails=(True,),
            passes=(False,),
        ),
    ),
    rule(
        "G53",
        within("model", "context_parallel_size hidden_dropout attention_dropout"),
        _dropout_on_parts,
        why="Megatron draws the same dropout mask on every context-parallel rank, so the parts of a sequence are not "
        "independent",
        fix="Set hidden_dropout=0 and attention_dropout=0, or context_parallel_size=1.",
        fails=(2, 0.1, 0.0),
        passes=(2, 0.0, 0.0),
    ),
    rule(
        "G54",
        (
            *within(
                "dataset",
                "reset_attention_mask skip_getting_attention_mask_from_dataset create_attention_mask",
            ),
            "model.transformer_impl",
        ),
        _mask_without_effect,
        why="documents of a sequence would attend to previous ones",
        fix="Set reset_attention_mask=false; or, with transformer_impl=local, create_attention_mask=true and "
        "skip_getting_attention_mask_from_dataset=false.",
        fails=(True, True, True, "local"),
        passes=(True, False, True, "local"),
    ),
    rule(
        "G55",
        ("dataset.reset_position_ids", "model.position_embedding_type"),
        lambda reset, kind: (
            f"has no effect on position_embedding_type={kind}" if reset and kind in ("rope", "yarn") else None
        ),
        why="rotary positions count from the start of the sequence, and attention depends on their differences only",
        fix="Set dataset.reset_position_ids=false.",
        fails=(True, "rope"),
        passes=(True, "learned_absolute"),
    ),
    rule(
        "G56",
        (*within("model", "cuda_graph_impl cuda_graph_modules num_moe_experts"), "dataset.dataset_root"),
        _graph_of_padding,
        why="the graph of a router keeps the padding of the batch that it captured",
        fix="Leave moe, moe_router and moe_preprocess out of cuda_graph_modules, or set cuda_graph_impl=none.",
        fails=("transformer_engine", ["attn", "moe_router"], 8, "/data"),
        passes=("transformer_engine", ["attn"], 8, "/data"),
    ),
    rule(
        "G57",
        ("model.moe_router_load_balancing_type", "dataset.dataset_root", "model.num_moe_experts"),
        lambda kind, root, experts: (
            f"is {kind} for fine-tuning"
            if kind in _OVER_ALL_TOKENS and root is not None and experts
            else None
        ),
        why="it assigns experts to all tokens of a microbatch together, so padding would change those of the others",
        fix="Use aux_loss, seq_aux_loss, global_aux_loss or none.",
        fails=("sinkhorn", "/data", 8),
        passes=("seq_aux_loss", "/data", 8),
    ),
    *variant_rules.RULES,
    *layer_variant_rules.RULES,
    *width_rules.RULES,
    *parallelism_rules.RULES,
    *size_rules.RULES,
    *recompute_rules.RULES,
    *precision_rules.RULES,
    *moe_rules.RULES,
    *layer_rules.RULES,
    *cuda_graph_rules.RULES,
    *kernel_rules.RULES,
    *hybrid_rules.RULES,
    *t5_rules.RULES,
    *fsdp_rules.RULES,
    *mimo_rules.RULES,
    *peft_rules.RULES,
)
"""Rules on a section as written by the user."""

INTERLEAVING = rule(
    "G20",
    within(
        "model",
        "virtual_pipeline_model_parallel_size pipeline_model_parallel_size overlap_p2p_comm batch_p2p_comm",
    ),
    _interleaving_is_safe,
    why="two stages would send and receive several tensors between the same two ranks in one batch, and the model "
    "would train incorrectly without an error",
    fix="Set overlap_p2p_comm=true and batch_p2p_comm=false.",
    fails=(2, 2, False, True),
    passes=(2, 2, True, False),
)
"""Applies to a resolved section only, because the overlap section may still change the two switches."""

BUILD_RULES: tuple[Rule, ...] = (*RULES, INTERLEAVING)
"""Rules that hold when the model is built."""
