"""Rules on deferring the weight gradient of the embedding: the conditions of Megatron Core's model configuration."""

from mb_overlap.rules.conditions import on_switch
from mb_schema.rule_kinds import model_rule, section_rule
from mb_schema.rules import Rule

DEFER_EMBEDDING_WGRAD = "defer_embedding_wgrad_compute"


@model_rule(
    "O01a",
    why="the deferred gradient is computed while the pipeline drains",
    fix="Set model.pipeline_model_parallel_size=2 or more.",
    fails={"pp": 1},
    passes={"pp": 2},
)
def _needs_pipeline_stages(pp):
    return f"needs several pipeline stages (pp={pp})" if (pp or 1) < 2 else None


@model_rule(
    "O01b",
    why="the fused kernel adds the deferred gradient to the gradient buffer",
    fix="Set model.gradient_accumulation_fusion=true.",
    fails={"gradient_accumulation_fusion": False},
    passes={"gradient_accumulation_fusion": True},
)
def _needs_accumulation_fusion(gradient_accumulation_fusion):
    return (
        None
        if gradient_accumulation_fusion
        else f"needs gradient_accumulation_fusion ({gradient_accumulation_fusion})"
    )


@model_rule(
    "O01d",
    why="Megatron Core would add the deferred gradient of the output layer to the embedding",
    fix="Set model.mtp_num_layers=null, or do not defer.",
    fails={"mtp_num_layers": 1},
    passes={"mtp_num_layers": None},
)
def _supports_no_predictions(mtp_num_layers):
    return f"supports no multi-token prediction (mtp_num_layers={mtp_num_layers})" if mtp_num_layers else None


def _limit_of(section: str, *conditions: str) -> Rule:
    """Return the rule on the limit of a section; `conditions` are facts without which it does not apply."""

    def negative_limit(wgrad_deferral_limit, **_):
        if wgrad_deferral_limit is None or wgrad_deferral_limit >= 0:
            return None
        return f"needs wgrad_deferral_limit >= 0 ({wgrad_deferral_limit})"

    return section_rule(
        section,
        "O01c",
        others=conditions,
        why="0 already means all microbatches",
        fix=f"Set {section}.wgrad_deferral_limit=0.",
        fails={"wgrad_deferral_limit": -1, **dict.fromkeys(conditions, True)},
        passes={"wgrad_deferral_limit": 0},
    )(negative_limit)


SECTION_RULES: tuple[Rule, ...] = on_switch(
    (_needs_pipeline_stages, _needs_accumulation_fusion, _limit_of("comm_overlap"), _supports_no_predictions),
    f"comm_overlap.{DEFER_EMBEDDING_WGRAD}",
)
"""Rules on the field of the `comm_overlap` section."""

MODEL_RULES: tuple[Rule, ...] = on_switch(
    (
        _needs_pipeline_stages,
        _needs_accumulation_fusion,
        _limit_of("model", "facts.resolved"),
        _supports_no_predictions,
    ),
    f"model.{DEFER_EMBEDDING_WGRAD}",
)
"""Rules on the field of the model section."""

RULES: tuple[Rule, ...] = (*SECTION_RULES, *MODEL_RULES)
"""Every rule of this file."""
