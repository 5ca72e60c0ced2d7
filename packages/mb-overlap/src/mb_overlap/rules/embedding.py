"""Rules on deferring the weight gradient of the embedding: the conditions of Megatron Core's model configuration."""

from mb_overlap.rules.conditions import on_switch
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

DEFER_EMBEDDING_WGRAD = "defer_embedding_wgrad_compute"


def _needs_pipeline_stages(pp: int | None) -> str | None:
    return f"needs several pipeline stages (pp={pp})" if (pp or 1) < 2 else None


def _needs_accumulation_fusion(fusion: bool | None) -> str | None:
    return None if fusion else f"needs gradient_accumulation_fusion ({fusion})"


def _needs_deferral_limit(limit: int | None) -> str | None:
    return f"needs wgrad_deferral_limit >= 0 ({limit})" if limit is not None and limit < 0 else None


_STAGES = rule(
    "O01a",
    "model.pipeline_model_parallel_size",
    _needs_pipeline_stages,
    why="the deferred gradient is computed while the pipeline drains",
    fix="Set model.pipeline_model_parallel_size=2 or more.",
    fails=(1,),
    passes=(2,),
)
_FUSION = rule(
    "O01b",
    "model.gradient_accumulation_fusion",
    _needs_accumulation_fusion,
    why="the fused kernel adds the deferred gradient to the gradient buffer",
    fix="Set model.gradient_accumulation_fusion=true.",
    fails=(False,),
    passes=(True,),
)


def _limit_of(section: str, *conditions: str) -> Rule:
    return rule(
        "O01c",
        (f"{section}.wgrad_deferral_limit", *conditions),
        lambda limit, *_: _needs_deferral_limit(limit),
        why="0 already means all microbatches",
        fix=f"Set {section}.wgrad_deferral_limit=0.",
        fails=(-1, *(True for _ in conditions)),
        passes=(0, *(True for _ in conditions)),
    )


SECTION_RULES: tuple[Rule, ...] = on_switch(
    (_STAGES, _FUSION, _limit_of("comm_overlap")), f"comm_overlap.{DEFER_EMBEDDING_WGRAD}"
)
"""Rules on the field of the `comm_overlap` section."""

MODEL_RULES: tuple[Rule, ...] = on_switch(
    (_STAGES, _FUSION, _limit_of("model", "facts.resolved")), f"model.{DEFER_EMBEDDING_WGRAD}"
)
"""Rules on the field of the model section."""

RULES: tuple[Rule, ...] = (*SECTION_RULES, *MODEL_RULES)
"""Every rule of this file."""
