"""Test cases of every family under every layout, and the table of them in the documentation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SHAPE = {
    "num_layers": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "ffn_hidden_size": 48,
    "gated_linear_unit": True,
    "activation_func": "silu",
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "seq_length": 16,
    "vocab_size": 64,
    "calculate_per_token_loss": True,
    "transformer_impl": "local",
}
EXPERTS = {
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 24,
    "moe_token_dispatcher_type": "alltoall",
    "moe_aux_loss_coeff": 0.01,
}
LATENT = {
    "multi_latent_attention": True,
    "num_query_groups": None,
    "qk_layernorm": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 12,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 10,
    "rope_type": "rope",
}
VARIANTS = {
    "layernorm_zero_centered_gamma": True,
    "activation_func": "fast_gelu",
    "norm_position": "pre_and_post",
    "qk_layernorm": True,
    "window_size": (3, 0),
    "window_attn_skip_freq": [1, 0, 1, 1],
    "rotary_base_local": 100,
    "embedding_multiplier": 5.0,
    "residual_multiplier": 0.5,
    "logits_multiplier": 2.0,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "share_embeddings_and_output_weights": True,
}
PARALLEL = {
    "norm_position": "pre",
    "residual_branches": "parallel",
    "layernorm_zero_centered_gamma": False,
    "normalization": "LayerNorm",
    "rotary_interleaved": True,
}
SHARED_NORM = {**PARALLEL, "residual_branches": "parallel_shared_norm", "layernorm_bias": False}
HYBRID = {
    "num_layers": 5,
    "hybrid_layer_pattern": "MG*-E",
    "mamba_state_dim": 8,
    "mamba_head_dim": 8,
    "mamba_num_groups": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    **EXPERTS,
}
GATED = {
    "qk_layernorm": True,
    "attention_output_gate": True,
    "layernorm_zero_centered_gamma": True,
    "position_embedding_type": "rope",
    "rotary_percent": 0.5,
}
PAIRS = {"num_layers": 2, "num_query_groups": None, "decoder_seq_length": 8}
VISION = {
    "num_layers": 2,
    "vision_num_layers": 2,
    "vision_hidden_size": 32,
    "vision_num_attention_heads": 4,
    "image_size": 8,
    "patch_size": 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of model, with its provider and its settings."""

    kind: str
    """gpt, hybrid, t5 or mimo."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from `SHAPE`."""
    peft: str | None = None
    """Adapters; only they are trained."""


FAMILIES: Mapping[str, Family] = {
    "GPT": Family(kind="gpt"),
    "GPT, layer variants": Family(kind="gpt", settings=VARIANTS),
    "GPT, latent attention": Family(kind="gpt", settings=LATENT),
    "GPT, multi-token prediction": Family(kind="gpt", settings={"mtp_num_layers": 1}),
    "GPT, experts": Family(kind="gpt", settings=EXPERTS),
    "hybrid": Family(kind="hybrid", settings=HYBRID),
    "T5": Family(kind="t5", settings=PAIRS),
    "MIMO": Family(kind="mimo", settings=VISION),
    "LoRA": Family(kind="gpt", peft="lora"),
    "DoRA": Family(kind="gpt", peft="dora"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCase:
    """A run whose losses on several ranks are compared with those of one rank from the same checkpoint."""

    family: str
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Parallelism fields of the section, which the run on one rank does not set."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the run on one rank sets as well."""
    also: tuple[str, ...] = ()
    """Further families that the model belongs to."""
    ranks: int = 2
    sharded: bool = False
    """Shard the optimizer's state over data-parallel ranks, and overlap their communication."""
    tolerance: float = 1e-5

    def __str__(self) -> str:
        columns = [name for name, on in covered_columns(self).items() if on]
        more = [name for name in self.model if name not in {**BF16, **FP16}][:1]
        return " ".join([self.family, f"{self.ranks} ranks", *columns, *more])


TP2 = {"tensor_model_parallel_size": 2}
SP2 = {**TP2, "sequence_parallel": True}
PP2 = {"pipeline_model_parallel_size": 2}
VP2 = {**PP2, "virtual_pipeline_model_parallel_size": 2, "overlap_p2p_comm": True, "batch_p2p_comm": False}
CP2 = {"context_parallel_size": 2}
LEARNED = {"position_embedding_type": "learned_absolute"}
ETP1 = {"expert_tensor_parallel_size": 1}
ETP2 = {"expert_tensor_parallel_size": 2}
EP2 = {"expert_model_parallel_size": 2}
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
BF16 = {"bf16": True, "params_dtype": "bfloat16"}
FP16 = {"fp16": True, "params_dtype": "float16"}
TIED = {"share_embeddings_and_output_weights": True}
MLA_MOE = {**LATENT, **EXPERTS, "moe_layer_freq": [0, 1, 1, 1]}
VARIED = "GPT, layer variants"
MTP = "GPT, multi-token prediction"
MLA = "GPT, latent attention"
MOE = "GPT, experts"
YARN = {
    "position_embedding_type": "yarn",
    "yarn_rotary_scaling_factor": 4.0,
    "yarn_original_max_position_embeddings": 8,
}
WINDOW = {"window_size": (8, 0), "window_attn_skip_freq": [1, 0, 1, 1]}
AMPLIFIED = 5e-5
"""Adam normalizes the gradients of adapters that start at zero, which amplifies the rounding of a CPU's kernels."""
ROUNDED = {"sharded": True, "tolerance": 5e-3}
"""Half precision: the ranks sum in another order and round differently."""


def stages(pattern: str) -> dict[str, Any]:
    """Return the fields that divide a hybrid into stages."""
    return {"hybrid_layer_pattern": pattern}


CASES: tuple[FamilyCase, ...] = (
    FamilyCase(family="GPT", sharded=True),
    FamilyCase(family="GPT", layout=TP2, model=TIED),
    FamilyCase(family="GPT", layout=PP2, model=TIED),
    FamilyCase(family="GPT", layout={**VP2, **RECOMPUTE}),
    FamilyCase(family="GPT", layout=CP2, model={"calculate_per_token_loss": False}),
    FamilyCase(family="GPT", layout=CP2, model=YARN),
    FamilyCase(family="GPT", layout=CP2, model=WINDOW),
    FamilyCase(family="GPT", layout={**PP2, "num_layers_in_last_pipeline_stage": 1}, model=LEARNED),
    FamilyCase(family="GPT", model=BF16, **ROUNDED),
    FamilyCase(family="GPT", model=FP16, **ROUNDED),
    FamilyCase(family="GPT", layout={**TP2, **PP2}, ranks=4),
    FamilyCase(family="GPT", layout=SP2, ranks=4, sharded=True),
    FamilyCase(family=VARIED, layout=TP2, model={"qk_layernorm_scope": "all_heads", "norm_position": "post"}),
    FamilyCase(family=VARIED, layout={**PP2, **RECOMPUTE}),
    FamilyCase(family=VARIED, layout=SP2, model=SHARED_NORM),
    FamilyCase(family=VARIED, layout={**VP2, "pipeline_model_parallel_layout": "Et|t|t|tL"}, sharded=False),
    FamilyCase(family=VARIED, layout=CP2),
    FamilyCase(family=VARIED, layout={**PP2, **RECOMPUTE}, model=PARALLEL),
    FamilyCase(family=VARIED, layout=EP2, model=EXPERTS, also=(MOE,), sharded=True),
    FamilyCase(family=VARIED, layout={**SP2, **ETP2}, model=EXPERTS, also=(MOE,)),
    FamilyCase(family=VARIED, model=BF16, **ROUNDED),
    FamilyCase(family=VARIED, model=FP16, **ROUNDED),
    FamilyCase(family=VARIED, layout={**SP2, **PP2}, model={"mtp_num_layers": 1}, also=(MTP,), ranks=4),
    FamilyCase(family=MLA, layout=TP2),
    FamilyCase(family=MLA, layout={**SP2, **RECOMPUTE}),
    FamilyCase(family=MLA, layout=CP2),
    FamilyCase(family=MLA, layout={**PP2, **SP2, **EP2, **ETP1}, model=MLA_MOE, also=(MOE,), ranks=4),
    FamilyCase(family=MTP, layout=SP2),
    FamilyCase(family=MTP, layout=CP2),
    FamilyCase(family=MTP, layout={**PP2, **RECOMPUTE}),
    FamilyCase(family=MTP, layout={**PP2, "pipeline_model_parallel_layout": "Et|tttmL"}, model=TIED),
    FamilyCase(family=MTP, layout={**SP2, **ETP2}, model=MLA_MOE, also=(MLA, MOE)),
    FamilyCase(family=MTP, layout=EP2, model={**MLA_MOE, **BF16}, also=(MLA, MOE), **ROUNDED),
    FamilyCase(family=MTP, model={**MLA_MOE, **FP16}, also=(MLA, MOE), **ROUNDED),
    FamilyCase(family=MTP, layout={**VP2, **EP2}, model=MLA_MOE, also=(MLA, MOE), ranks=4),
    FamilyCase(family=MOE, layout=EP2, sharded=True),
    FamilyCase(family=MOE, layout={**SP2, **EP2, **ETP1}),
    FamilyCase(family=MOE, layout=ETP2),
    FamilyCase(family=MOE, layout={**CP2, **RECOMPUTE}),
    FamilyCase(family=MOE, layout={**SP2, **EP2, **ETP2}, ranks=4),
    FamilyCase(family=MOE, layout={**PP2, **EP2}, ranks=4, sharded=True),
    FamilyCase(family="hybrid", layout={**SP2, **EP2, **ETP1}),
    FamilyCase(family="hybrid", layout={**PP2, **RECOMPUTE, **stages("MG*|-E")}),
    FamilyCase(family="hybrid", layout={**VP2, **stages("M|G|*-|E")}),
    FamilyCase(family="hybrid", layout=CP2),
    FamilyCase(family="hybrid", layout={**SP2, **EP2, **ETP1}, model=GATED),
    FamilyCase(family="hybrid", model=BF16, **ROUNDED),
    FamilyCase(family="hybrid", model=FP16, **ROUNDED),
    FamilyCase(family="hybrid", layout={**PP2, **SP2, **stages("MG*|-E")}, ranks=4),
    FamilyCase(family="hybrid", layout={**SP2, **EP2}, ranks=4, sharded=True),
    FamilyCase(family="T5", layout=TP2),
    FamilyCase(family="T5", layout={**SP2, **RECOMPUTE}),
    FamilyCase(family="T5", model=BF16, **ROUNDED),
    FamilyCase(family="T5", model=FP16, **ROUNDED),
    FamilyCase(family="T5", layout=SP2, ranks=4, sharded=True),
    FamilyCase(family="MIMO", sharded=True),
    FamilyCase(family="MIMO", layout=TP2),
    FamilyCase(family="MIMO", layout={**SP2, **RECOMPUTE}),
    FamilyCase(family="MIMO", layout=CP2),
    FamilyCase(family="MIMO", layout=EP2, model=EXPERTS, sharded=True),
    FamilyCase(family="MIMO", layout={**SP2, **ETP2}, model=EXPERTS),
    FamilyCase(family="MIMO", model=BF16, **ROUNDED),
    FamilyCase(family="MIMO", model=FP16, **ROUNDED),
    FamilyCase(family="MIMO", layout={**SP2, **CP2}, ranks=4, sharded=True),
    FamilyCase(family="LoRA", layout=TP2, tolerance=AMPLIFIED),
    FamilyCase(family="LoRA", layout={**SP2, **RECOMPUTE}),
    FamilyCase(family="LoRA", layout=VP2),
    FamilyCase(family="LoRA", layout=CP2),
    FamilyCase(family="LoRA", model=BF16, **ROUNDED),
    FamilyCase(family="LoRA", model=FP16, **ROUNDED),
    FamilyCase(family="LoRA", layout={**SP2, **PP2}, ranks=4),
    FamilyCase(family="LoRA", layout=EP2, model=EXPERTS, sharded=True),
    FamilyCase(family="LoRA", layout={**SP2, **EP2, **ETP1}, model=EXPERTS),
    FamilyCase(family="LoRA", layout={**PP2, **EP2}, model=EXPERTS, ranks=4, sharded=True),
    FamilyCase(family="LoRA", layout={**SP2, **ETP2}, model=EXPERTS, tolerance=1e-6),
    FamilyCase(family="LoRA", layout={**SP2, **EP2, **ETP2}, model=EXPERTS, ranks=4, sharded=True),
    FamilyCase(family="DoRA", layout=TP2),
    FamilyCase(family="DoRA", layout={**SP2, **ETP2}, model=EXPERTS, tolerance=1e-6),
    FamilyCase(family="DoRA", layout=CP2, model=BF16, tolerance=5e-3),
    FamilyCase(family="DoRA", model=FP16, **ROUNDED),
    FamilyCase(family="DoRA", layout={**SP2, **PP2, **RECOMPUTE}, ranks=4),
    FamilyCase(family="DoRA", layout={**VP2, **EP2}, model=EXPERTS, ranks=4),
)
"""All runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCase:
    """A layout that is rejected."""

    family: str
    column: str
    layout: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)
    rule: str
    """Id of the rule."""


REJECTED: tuple[RejectedCase, ...] = (
    RejectedCase(family="GPT", column="EP", layout=EP2, rule="P08"),
    RejectedCase(family="T5", column="PP", layout=PP2, rule="TF02"),
    RejectedCase(family="T5", column="VPP", layout=VP2, rule="TF02"),
    RejectedCase(family="T5", column="CP", layout=CP2, rule="TF03"),
    RejectedCase(family="T5", column="EP", layout=EP2, model=EXPERTS, rule="TF06"),
    RejectedCase(family="T5", column="ETP", layout=ETP2, model=EXPERTS, rule="TF06"),
    RejectedCase(family="MIMO", column="PP", layout=PP2, rule="M05"),
    RejectedCase(family="MIMO", column="VPP", layout=VP2, rule="M05"),
    RejectedCase(family="MIMO", column="CUDA graph", layout={"cuda_graph_impl": "local"}, rule="M08"),
)
"""Layouts that are not run, and the reason."""


def covered_columns(row: FamilyCase) -> dict[str, bool]:
    """Return the columns of the table that a run covers."""
    settings = {**FAMILIES[row.family].settings, **row.model, **row.layout}
    size = settings.get
    expert_ranks = size("expert_tensor_parallel_size") or size("tensor_model_parallel_size", 1)
    return {
        "TP": size("tensor_model_parallel_size", 1) > 1,
        "SP": bool(size("sequence_parallel")),
        "PP": size("pipeline_model_parallel_size", 1) > 1,
        "VPP": (size("virtual_pipeline_model_parallel_size") or 1) > 1,
        "CP": size("context_parallel_size", 1) > 1,
        "EP": size("expert_model_parallel_size", 1) > 1,
        "ETP": size("num_moe_experts") is not None and expert_ranks > 1,
        "DP, sharded": row.sharded,
        "recompute": bool(size("recompute_granularity")),
        "bf16": bool(size("bf16")),
        "fp16": bool(size("fp16")),
    }


def table() -> str:
    """Return the table of the documentation: the numbers of ranks of the runs of a family, or the reason for none."""
    columns = list(covered_columns(CASES[0]))
    lines = [f"| family | {' | '.join(columns)} | CUDA graph | runs |", "|---" * (len(columns) + 3) + "|"]
    for family in FAMILIES:
        rows = [row for row in CASES if family in (row.family, *row.also)]
        cells = [cell(family, column, rows) for column in columns]
        graph = rejection(family, "CUDA graph") or "GPU, untested"
        lines.append(f"| {family} | {' | '.join(cells)} | {graph} | {len(rows)} |")
    return "\n".join(lines)


def cell(family: str, column: str, rows: list[FamilyCase]) -> str:
    """Return the numbers of ranks of the runs of a family that cover a column."""
    ranks = sorted({row.ranks for row in rows if covered_columns(row)[column]})
    if ranks:
        return ", ".join(map(str, ranks))
    return rejection(family, column) or ("no experts" if column == "ETP" else "not run")


def rejection(family: str, column: str) -> str | None:
    """Return the text on the rejection of a family in a column, or None."""
    for case in REJECTED:
        if (case.family, case.column) == (family, column):
            return f"rejected ({case.rule})"
    return None


def counts() -> str:
    """Return the numbers of runs, as text."""
    two, four = (sum(row.ranks == ranks for row in CASES) for ranks in (2, 4))
    return f"{len(CASES)} runs, {two} on two ranks and {four} on four"
