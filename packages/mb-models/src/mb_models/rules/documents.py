"""Rules on the boundaries of documents in a sample: masks and positions of a dataset that a model ignores."""

from mb_schema.rule_kinds import implied_by, rule, within
from mb_schema.rules import Rule


def _documents_as_packed_sequences(masking: bool | None) -> str | None:
    return "the documents of a sample would be packed sequences" if masking else None


def _reset_position_ids_without_effect(reset: bool | None, kind: str | None) -> str | None:
    if reset and kind in ("rope", "yarn"):
        return f"has no effect on position_embedding_type={kind}"
    return None


def _reset_attention_mask_without_effect(
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
    implied_by(
        "D58",
        rule(
            "G26",
            "dataset.inter_document_masking",
            _documents_as_packed_sequences,
            why="the forward steps reject packed sequences: attention would cross their boundaries",
            fix="Set dataset.inter_document_masking=false.",
            fails=(True,),
            passes=(False,),
        ),
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
        _reset_attention_mask_without_effect,
        why="documents of a sequence would attend to previous ones",
        fix="Set reset_attention_mask=false; or, with transformer_impl=local, create_attention_mask=true and "
        "skip_getting_attention_mask_from_dataset=false.",
        fails=(True, True, True, "local"),
        passes=(True, False, True, "local"),
    ),
    rule(
        "G55",
        ("dataset.reset_position_ids", "model.position_embedding_type"),
        _reset_position_ids_without_effect,
        why="rotary positions count from the start of the sequence, and attention depends on their differences only",
        fix="Set dataset.reset_position_ids=false.",
        fails=(True, "rope"),
        passes=(True, "learned_absolute"),
    ),
)
