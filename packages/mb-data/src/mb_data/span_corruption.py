"""How many tokens and spans go from a text to the encoder and to the decoder of a T5. Standard library only."""

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSizes:
    """Sizes of one sample; all samples of a dataset have the same."""

    tokens: int
    """Tokens of the text that is taken apart."""
    noise_tokens: int
    """Of these, tokens that the decoder writes."""
    spans: int
    """Runs of them, each of which has a sentinel."""

    @property
    def encoder_tokens(self) -> int:
        """Tokens that the encoder reads: what is left, a sentinel for each span, and an end."""
        return self.tokens - self.noise_tokens + self.spans + 1

    @property
    def decoder_tokens(self) -> int:
        """Tokens that the decoder writes: each span behind its sentinel, and an end."""
        return self.noise_tokens + self.spans + 1


SHORTEST_ENCODER = 4
"""Two tokens that stay, a sentinel and an end."""


def span_sizes(tokens: int, *, noise_density: float, mean_span_length: float) -> SpanSizes:
    """Return how a text of at least two tokens is taken apart.

    At least one token goes and one stays; spans do not touch, so that there are never more of them than of either.
    Source: Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 3.1.4.
    """
    noise_tokens = min(max(round(tokens * noise_density), 1), tokens - 1)
    spans = max(round(noise_tokens / mean_span_length), 1)
    return SpanSizes(
        tokens=tokens, noise_tokens=noise_tokens, spans=min(spans, noise_tokens, tokens - noise_tokens)
    )


def fit_span_sizes(seq_length: int, *, noise_density: float, mean_span_length: float) -> SpanSizes:
    """Return the sizes of the longest text of which the encoder reads at most `seq_length` tokens.

    It reads exactly so many where less goes than stays, and else at most one fewer.

    Raises:
        ValueError: It is shorter than four tokens, the density is not between 0 and 1, or the spans are shorter than 1.
    """
    if seq_length < SHORTEST_ENCODER or not 0 < noise_density < 1 or mean_span_length < 1:
        raise ValueError(
            f"dataset.seq_length: {seq_length} tokens with noise_density={noise_density}, mean_span_length="
            f"{mean_span_length}; an encoder reads {SHORTEST_ENCODER} or more, and part of a text is taken out, in "
            "spans of one token or more. Correct them."
        )

    def sizes(tokens: int) -> SpanSizes:
        return span_sizes(tokens, noise_density=noise_density, mean_span_length=mean_span_length)

    too_many = 2 * seq_length
    while sizes(too_many).encoder_tokens <= seq_length:
        too_many *= 2
    texts = range(2, too_many)
    fitting = bisect_right(texts, seq_length, key=lambda tokens: sizes(tokens).encoder_tokens)
    return sizes(texts[fitting - 1])
