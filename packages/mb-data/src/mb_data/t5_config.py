"""The configuration sections of data for a T5. Standard library only.

The text is read as for a GPT: from `.bin`/`.idx` pairs and blends of them, from plain text files, or made up.
"""

from dataclasses import dataclass

from mb_data.config import GPTDatasetConfig, TextCorpusConfig
from mb_data.span_corruption import SpanSizes, fit_span_sizes


@dataclass(kw_only=True)
class SpanCorruptionOptions:
    """How a text becomes what an encoder reads and what a decoder writes; `random_seed` places the spans, too."""

    decoder_seq_length: int = 128
    """Tokens in what the decoder writes; what a text does not fill is padding."""

    noise_density: float = 0.15
    """Part of the text's tokens that the decoder writes."""

    mean_span_length: float = 3.0
    """Tokens of a span on the average, each of which leaves a sentinel in its place."""

    reset_position_ids: bool | None = False
    """No other value: both sequences count from their own start."""

    reset_attention_mask: bool | None = False
    """No other value: an encoder reads everything."""

    eod_mask_loss: bool | None = False
    """No other value: the end of a document is a token like any other."""

    add_extra_token_to_sequence: bool = False
    """No other value: labels are not a shifted input."""


@dataclass(kw_only=True)
class T5DatasetConfig(SpanCorruptionOptions, GPTDatasetConfig):
    """Pairs for an encoder and a decoder, from `.bin`/`.idx` pairs; without any data path from generated tokens.

    `seq_length` is what the encoder reads: the rest of a text of `sizes.tokens` tokens, a sentinel for each of its
    spans, and an end.
    """

    @property
    def sizes(self) -> SpanSizes:
        """How every text is taken apart."""
        return _span_sizes(self)


@dataclass(kw_only=True)
class T5TextCorpusConfig(SpanCorruptionOptions, TextCorpusConfig):
    """Pairs for an encoder and a decoder, from plain text files.

    `seq_length` is what the encoder reads: the rest of a text of `sizes.tokens` tokens, a sentinel for each of its
    spans, and an end.
    """

    @property
    def sizes(self) -> SpanSizes:
        """How every text is taken apart."""
        return _span_sizes(self)


def _span_sizes(section: T5DatasetConfig | T5TextCorpusConfig) -> SpanSizes:
    return fit_span_sizes(
        section.seq_length,
        noise_density=section.noise_density,
        mean_span_length=section.mean_span_length,
    )
