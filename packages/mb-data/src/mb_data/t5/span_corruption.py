"""Sizes of span corruption for T5: tokens and spans of encoder and decoder. Standard library only."""

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSizes:
    """Sizes of one sample, which are equal for all samples of a dataset."""

    tokens: int
    """Tokens of the uncorrupted text."""
    noise_tokens: int
    """Tokens of the text that are moved to the decoder."""
    spans: int
    """Number of spans of noise tokens, each replaced by a sentinel."""

    @property
    def encoder_tokens(self) -> int:
        """Tokens of the encoder: the remaining text, a sentinel for each span, and an end token."""
        return self.tokens - self.noise_tokens + self.spans + 1

    @property
    def decoder_tokens(self) -> int:
        """Tokens of the decoder: a sentinel followed by its span for each span, and an end token."""
        return self.noise_tokens + self.spans + 1


SHORTEST_ENCODER = 4
"""Minimum length of the encoder: two tokens of text, a sentinel and an end token."""


def span_sizes(tokens: int, *, noise_density: float, mean_span_length: float) -> SpanSizes:
    """Return the sizes for a text of at least two tokens.

    At least one token is noise and at least one remains. Spans are not adjacent, so their number exceeds neither that
    of noise tokens nor that of remaining tokens. Source: Raffel et al., "Exploring the Limits of Transfer Learning"
    (2020), section 3.1.4.
    """
    noise_tokens = min(max(round(tokens * noise_density), 1), tokens - 1)
    spans = max(round(noise_tokens / mean_span_length), 1)
    return SpanSizes(
        tokens=tokens, noise_tokens=noise_tokens, spans=min(spans, noise_tokens, tokens - noise_tokens)
    )


def fit_span_sizes(seq_length: int, *, noise_density: float, mean_span_length: float) -> SpanSizes:
    """Return the sizes of the longest text for which the encoder has at most `seq_length` tokens.

    The encoder has exactly `seq_length` tokens if fewer tokens are noise than remain, and otherwise at most one less.

    Raises:
        ValueError: `seq_length` is below 4, the density is not between 0 and 1, or the mean span length is below 1.
    """
    if seq_length < SHORTEST_ENCODER or not 0 < noise_density < 1 or mean_span_length < 1:
        raise ValueError(
            f"dataset.seq_length: {seq_length} tokens with noise_density={noise_density}, mean_span_length="
            f"{mean_span_length}; an encoder reads {SHORTEST_ENCODER} or more, and a part of the text is removed "
            "in spans of at least one token. Correct them."
        )

    def sizes(tokens: int) -> SpanSizes:
        return span_sizes(tokens, noise_density=noise_density, mean_span_length=mean_span_length)

    too_many = 2 * seq_length
    while sizes(too_many).encoder_tokens <= seq_length:
        too_many *= 2
    texts = range(2, too_many)
    fitting = bisect_right(texts, seq_length, key=lambda tokens: sizes(tokens).encoder_tokens)
    return sizes(texts[fitting - 1])
