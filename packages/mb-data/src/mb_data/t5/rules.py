"""Rules for the sections of T5 data. Standard library only.

The rules do not apply to a dataset that lacks one of their fields, or has None there.
"""

from mb_data.t5.span_corruption import SHORTEST_ENCODER, SpanSizes, fit_span_sizes
from mb_schema.rule_kinds import SET, excludes, other_than, rule
from mb_schema.rules import Rule

_SPANS = ("dataset.noise_density", "dataset.mean_span_length", "dataset.seq_length")


def _sizes(density: float | None, span: float | None, length: int | None) -> SpanSizes | None:
    """Return the sizes of the span corruption; None without settings for it, or if they are invalid."""
    if density is None or span is None or length is None or _span_settings_problem(density, span, length):
        return None
    return fit_span_sizes(length, noise_density=density, mean_span_length=span)


def _span_settings_problem(density: float | None, span: float | None, length: int | None) -> str | None:
    if density is None or span is None or length is None:
        return None
    if 0 < density < 1 and span >= 1 and length >= SHORTEST_ENCODER:
        return None
    return f"{density} with mean_span_length={span}, seq_length={length}"


def _decoder_suffices(
    decoder_length: int | None, density: float | None, span: float | None, length: int | None
) -> str | None:
    sizes = _sizes(density, span, length)
    if sizes is None or decoder_length is None or decoder_length >= sizes.decoder_tokens:
        return None
    return f"{decoder_length} tokens, but the decoder has {sizes.decoder_tokens}"


def _enough_sentinels(
    sentinels: int | None, density: float | None, span: float | None, length: int | None
) -> str | None:
    sizes = _sizes(density, span, length)
    if sizes is None or sentinels is None or sentinels >= sizes.spans:
        return None
    return f"{sentinels} sentinels for {sizes.spans} spans"


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
    rule(
        "D51",
        _SPANS,
        _span_settings_problem,
        why="a part of every text is removed in spans of at least one token, and the encoder reads at least "
        f"{SHORTEST_ENCODER} tokens",
        fix="Set noise_density between 0 and 1, mean_span_length to 1 or more, and a longer seq_length.",
        fails=(1.0, 3.0, 512),
        passes=(0.15, 3.0, 512),
    ),
    rule(
        "D52",
        ("dataset.decoder_seq_length", *_SPANS),
        _decoder_suffices,
        why="removed spans are not truncated",
        fix="Increase dataset.decoder_seq_length and model.decoder_seq_length to that, or decrease dataset.seq_length.",
        fails=(113, 0.15, 3.0, 512),
        passes=(114, 0.15, 3.0, 512),
    ),
    rule(
        "D53",
        ("tokenizer.vocab_extra_ids", *_SPANS),
        _enough_sentinels,
        why="every span of a text is replaced by a different sentinel",
        fix="Increase tokenizer.vocab_extra_ids, for example to 100, or increase dataset.mean_span_length.",
        fails=(0, 0.15, 3.0, 512),
        passes=(100, 0.15, 3.0, 512),
    ),
    *(
        excludes(
            f"D{number}",
            {f"dataset.{name}": other_than(value, None), _SPANS[0]: SET},
            why=why,
            fix="Leave it unset.",
            fails=(not value, 0.15),
            passes=(value, 0.15),
        )
        for number, name, value, why in _FIXED
    ),
)
"""All rules for T5 data."""
