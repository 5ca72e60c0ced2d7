"""Rules for the sections of T5 data. Standard library only.

The rules do not apply to a dataset that lacks one of their fields, or has None there.
"""

from functools import partial

from mb_data.t5.span_corruption import SHORTEST_ENCODER, SpanSizes, fit_span_sizes
from mb_schema.rule_kinds import SET, dataset_rule, excludes, other_than, section_rule
from mb_schema.rules import Rule, rules_in

tokenizer_rule = partial(section_rule, "tokenizer")

_SPANS = ("dataset.noise_density", "dataset.mean_span_length", "dataset.seq_length")


def _sizes(density: float | None, span: float | None, length: int | None) -> SpanSizes | None:
    """Return the sizes of the span corruption; None without settings for it, or if they are invalid."""
    if density is None or span is None or length is None or _span_settings_problem(density, span, length):
        return None
    return fit_span_sizes(length, noise_density=density, mean_span_length=span)


def _span_settings_problem(noise_density, mean_span_length, seq_length):
    if noise_density is None or mean_span_length is None or seq_length is None:
        return None
    if 0 < noise_density < 1 and mean_span_length >= 1 and seq_length >= SHORTEST_ENCODER:
        return None
    return f"{noise_density} with mean_span_length={mean_span_length}, seq_length={seq_length}"


@dataset_rule(
    "D52",
    why="removed spans are not truncated",
    fix="Increase dataset.decoder_seq_length and model.decoder_seq_length to that, or decrease dataset.seq_length.",
    fails={"decoder_seq_length": 113, "noise_density": 0.15, "mean_span_length": 3.0, "seq_length": 512},
    passes={"decoder_seq_length": 114},
)
def _decoder_suffices(decoder_seq_length, noise_density, mean_span_length, seq_length):
    sizes = _sizes(noise_density, mean_span_length, seq_length)
    if sizes is None or decoder_seq_length is None or decoder_seq_length >= sizes.decoder_tokens:
        return None
    return f"{decoder_seq_length} tokens, but the decoder has {sizes.decoder_tokens}"


@tokenizer_rule(
    "D53",
    why="every span of a text is replaced by a different sentinel",
    fix="Increase tokenizer.vocab_extra_ids, for example to 100, or increase dataset.mean_span_length.",
    fails={
        "vocab_extra_ids": 0,
        "dataset__noise_density": 0.15,
        "dataset__mean_span_length": 3.0,
        "dataset__seq_length": 512,
    },
    passes={"vocab_extra_ids": 100},
)
def _enough_sentinels(
    vocab_extra_ids, dataset__noise_density, dataset__mean_span_length, dataset__seq_length
):
    sizes = _sizes(dataset__noise_density, dataset__mean_span_length, dataset__seq_length)
    if sizes is None or vocab_extra_ids is None or vocab_extra_ids >= sizes.spans:
        return None
    return f"{vocab_extra_ids} sentinels for {sizes.spans} spans"


_FIXED = (
    (54, "reset_position_ids", False, "the position ids of both sequences start at 0"),
    (55, "reset_attention_mask", False, "the encoder attends across document boundaries"),
    (56, "eod_mask_loss", False, "the end-of-document token is treated as any other token"),
    (57, "add_extra_token_to_sequence", False, "labels are not a shifted input"),
    (58, "inter_document_masking", False, "the encoder attends across document boundaries"),
    (
        59,
        "skip_getting_attention_mask_from_dataset",
        True,
        "the forward step creates the three attention masks of a sample",
    ),
    (
        60,
        "drop_last_partial_validation_sequence",
        True,
        "all texts have the same length, and so do all samples",
    ),
)
"""Fields of the GPT section with a fixed value: rule number, name, value, reason."""

RULES: tuple[Rule, ...] = (
    dataset_rule(
        "D51",
        why="a part of every text is removed in spans of at least one token, and the encoder reads at least "
        f"{SHORTEST_ENCODER} tokens",
        fix="Set noise_density between 0 and 1, mean_span_length to 1 or more, and a longer seq_length.",
        fails={"noise_density": 1.0, "mean_span_length": 3.0, "seq_length": 512},
        passes={"noise_density": 0.15},
    )(_span_settings_problem),
    *rules_in(globals()),
    *(
        excludes(
            f"D{number}",
            {f"dataset.{name}": other_than(value, None), _SPANS[0]: SET},
            why=why,
            fix="Leave it unset.",
            fails={f"dataset.{name}": not value, _SPANS[0]: 0.15},
            passes={f"dataset.{name}": value},
        )
        for number, name, value, why in _FIXED
    ),
)
"""All rules for T5 data."""
