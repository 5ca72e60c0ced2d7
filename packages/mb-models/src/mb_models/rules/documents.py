"""Rules on the boundaries of documents in a sample: masks and positions of a dataset that a model ignores."""

from mb_schema.rule_kinds import dataset_rule
from mb_schema.rules import Rule, rules_in


@dataset_rule(
    "G26",
    why="the forward steps reject packed sequences: attention would cross their boundaries",
    fix="Set dataset.inter_document_masking=false.",
    fails={"inter_document_masking": True},
    passes={"inter_document_masking": False},
    implied_by="D58",
)
def _documents_as_packed_sequences(inter_document_masking):
    return "the documents of a sample would be packed sequences" if inter_document_masking else None


@dataset_rule(
    "G55",
    why="rotary positions count from the start of the sequence, and attention depends on their differences only",
    fix="Set dataset.reset_position_ids=false.",
    fails={"reset_position_ids": True, "model__position_embedding_type": "rope"},
    passes={"model__position_embedding_type": "learned_absolute"},
)
def _reset_position_ids_without_effect(reset_position_ids, model__position_embedding_type):
    if reset_position_ids and model__position_embedding_type in ("rope", "yarn"):
        return f"has no effect on position_embedding_type={model__position_embedding_type}"
    return None


@dataset_rule(
    "G54",
    why="documents of a sequence would attend to previous ones",
    fix="Set reset_attention_mask=false; or, with transformer_impl=local, create_attention_mask=true and "
    "skip_getting_attention_mask_from_dataset=false.",
    fails={
        "reset_attention_mask": True,
        "skip_getting_attention_mask_from_dataset": True,
        "create_attention_mask": True,
    },
    passes={"skip_getting_attention_mask_from_dataset": False},
)
def _reset_attention_mask_without_effect(
    reset_attention_mask,
    skip_getting_attention_mask_from_dataset,
    create_attention_mask,
    model__transformer_impl,
):
    if not reset_attention_mask:
        return None
    if skip_getting_attention_mask_from_dataset or not create_attention_mask:
        return (
            "has no effect: no mask is passed to the model "
            f"(skip_getting_attention_mask_from_dataset={skip_getting_attention_mask_from_dataset}, "
            f"create_attention_mask={create_attention_mask})"
        )
    if model__transformer_impl == "transformer_engine":
        return "has no effect: causal attention of Transformer Engine ignores masks"
    return None


RULES: tuple[Rule, ...] = rules_in(globals())
