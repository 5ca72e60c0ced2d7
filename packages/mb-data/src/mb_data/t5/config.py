"""Configuration sections for T5 data. Standard library only.

Texts are read as for a GPT: from `.bin`/`.idx` pairs and blends of them, from plain text files, or generated.
"""

from dataclasses import dataclass
from typing import ClassVar

from mb_data.config import GPTDatasetConfig, TextCorpusConfig
from mb_data.t5.span_corruption import SpanSizes, fit_span_sizes


@dataclass(kw_only=True)
class SpanCorruptionOptions:
    """Fields that control span corruption. `random_seed` also determines the positions of spans."""

    builder: ClassVar[str] = "mb_data.t5.build:build_t5_datasets"

    decoder_seq_length: int = 128
    """Length of the decoder sequence in tokens, with padding."""

    noise_density: float = 0.15
    """Fraction of the tokens of a text that the decoder predicts."""

    mean_span_length: float = 3.0
    """Mean length of a span in tokens. Each span is replaced by one sentinel."""

    reset_position_ids: bool | None = False
    """Fixed, because the position ids of both sequences start at 0."""

    reset_attention_mask: bool | None = False
    """Fixed, because the encoder attends to the complete sequence."""

    eod_mask_loss: bool | None = False
    """Fixed, because the end-of-document token is treated as any other token."""

    add_extra_token_to_sequence: bool = False
    """Fixed, because labels are not a shifted input."""

    @property
    def sizes(self) -> SpanSizes:
        """Sizes of the span corruption of every text. The section has the field `seq_length`."""
        length: int = self.seq_length  # type: ignore[attr-defined] # a field of the GPT section
        return fit_span_sizes(
            length, noise_density=self.noise_density, mean_span_length=self.mean_span_length
        )


@dataclass(kw_only=True)
class T5DatasetConfig(SpanCorruptionOptions, GPTDatasetConfig):
    """Section for T5 data from `.bin`/`.idx` pairs; without any data path, from generated tokens.

    `seq_length` is the length of the encoder sequence: the remaining tokens of a text of `sizes.tokens` tokens, a
    sentinel for each span, and an end token.
    """


@dataclass(kw_only=True)
class T5TextCorpusConfig(SpanCorruptionOptions, TextCorpusConfig):
    """Section for T5 data from plain text files.

    `seq_length` is the length of the encoder sequence: the remaining tokens of a text of `sizes.tokens` tokens, a
    sentinel for each span, and an end token.
    """
