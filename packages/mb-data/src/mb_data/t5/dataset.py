"""Span corruption for T5: the encoder reads a text with sentinels in place of spans, the decoder predicts the spans.

Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020),
section 3.1.4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mb_data.errors import DatasetError, TokenizerError
from mb_data.t5.span_corruption import SpanSizes

Tokens = NDArray[np.int64]


class TextDataset(Protocol):
    """Map-style dataset whose samples have `tokens` of equal length, such as Megatron's GPT datasets."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]:
        """Return one sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderPair:
    """Encoder input and decoder labels, without padding. Each ends with an end token."""

    encoder: Tokens
    labels: Tokens


def corrupt_spans(
    tokens: Tokens, sizes: SpanSizes, *, sentinels: Sequence[int], end: int, random: np.random.Generator
) -> EncoderDecoderPair:
    """Replace random spans of a text by sentinels.

    Remaining tokens and spans alternate. The text starts with remaining tokens and ends with a span, no part is empty,
    and all divisions are equally likely. The encoder reads sentinel k in place of span k. The labels contain each
    sentinel followed by its span.

    Args:
        tokens: Array of `sizes.tokens` token ids.
        sizes: Number of noise tokens and of spans.
        sentinels: Sentinel ids in order, at least one for each span.
        end: Id that ends both sequences.
        random: Random number generator; two draws.

    Raises:
        ValueError: The text does not have `sizes.tokens` tokens.
    """
    if tokens.size != sizes.tokens:
        raise ValueError(
            f"corrupt_spans: a text of {tokens.size} tokens, but the sizes are for {sizes.tokens}; the last span would "
            "have a wrong length. Pass texts of that length."
        )
    # The order of the two draws determines the samples of a seed.
    kept_lengths = _lengths(sizes.tokens - sizes.noise_tokens, sizes.spans, random)
    span_lengths = _lengths(sizes.noise_tokens, sizes.spans, random)
    edges = np.cumsum(np.stack([kept_lengths, span_lengths], axis=1).ravel())[:-1]
    pieces = np.split(tokens, edges)
    unmasked, spans = pieces[::2], pieces[1::2]
    marks = [np.array([sentinel]) for sentinel in sentinels[: sizes.spans]]
    last = [np.array([end])]
    encoder = [part for text, mark in zip(unmasked, marks, strict=True) for part in (text, mark)]
    labels = [part for mark, span in zip(marks, spans, strict=True) for part in (mark, span)]
    return EncoderDecoderPair(encoder=np.concatenate(encoder + last), labels=np.concatenate(labels + last))


class T5Dataset:
    """Map-style dataset of span-corrupted texts for T5.

    Sample i is a pure function of text i, the seed and i. It does not depend on the order of reading, the number of
    ranks or the batch size, so the number of consumed samples is the complete position.

    A sample is a dictionary of tensors: `text_enc` and `enc_mask` of shape [seq_length]; `text_dec`, `labels` and
    `loss_mask` of shape [decoder_seq_length]. Masks are 1 for tokens and 0 for padding. The dtype is int64, except
    float32 for `loss_mask`. The decoder input is the end-of-document id followed by the labels, shifted by one. The
    same id pads both sequences.

    Args:
        texts: Samples with `tokens` of length `sizes.tokens`.
        sizes: Sizes of the span corruption.
        seq_length: Length of the encoder sequence in tokens, with padding.
        decoder_seq_length: Length of the decoder sequence in tokens, with padding.
        sentinels: Sentinel ids, at least one for each span, larger than all token ids of the texts.
        end: End-of-document id.
        seed: Seed of the positions of spans.

    Raises:
        DatasetError: A sequence is too short, or there are too few sentinels.
        TokenizerError: On access to a sample: its text has a token id that is not smaller than all sentinels. The check
            takes one maximum over the text.
    """

    def __init__(
        self,
        texts: TextDataset,
        *,
        sizes: SpanSizes,
        seq_length: int,
        decoder_seq_length: int,
        sentinels: Sequence[int],
        end: int,
        seed: int,
    ) -> None:
        needs = (sizes.encoder_tokens, sizes.decoder_tokens, sizes.spans)
        if any(
            have < need
            for have, need in zip((seq_length, decoder_seq_length, len(sentinels)), needs, strict=True)
        ):
            raise DatasetError(
                f"T5Dataset: seq_length={seq_length}, decoder_seq_length={decoder_seq_length}, {len(sentinels)} "
                f"sentinels, but a text of {sizes.tokens} tokens requires {needs}; nothing is truncated. Increase "
                "them, or shorten the text."
            )
        self._texts, self._sizes, self._seed = texts, sizes, seed
        self._lengths = seq_length, decoder_seq_length
        self._sentinels, self._end = sentinels, end
        self._lowest_sentinel = min(sentinels)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._texts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return one sample."""
        tokens = np.asarray(self._texts[index]["tokens"], dtype=np.int64)
        self._require_below_sentinels(tokens, index)
        pair = corrupt_spans(
            tokens,
            self._sizes,
            sentinels=self._sentinels,
            end=self._end,
            random=np.random.default_rng((self._seed, index)),
        )
        encoder, decoder = self._lengths
        return {
            "text_enc": self._padded(pair.encoder, encoder),
            "enc_mask": _mask(pair.encoder.size, encoder).long(),
            "text_dec": self._padded(np.concatenate([[self._end], pair.labels[:-1]]), decoder),
            "labels": self._padded(pair.labels, decoder),
            "loss_mask": _mask(pair.labels.size, decoder),
        }

    def _require_below_sentinels(self, tokens: Tokens, index: int) -> None:
        largest = int(tokens.max())
        if largest >= self._lowest_sentinel:
            raise TokenizerError(
                f"T5Dataset: text {index} has token {largest}, but sentinels begin at {self._lowest_sentinel}; the "
                "token could not be distinguished from a sentinel. Use the tokenizer that produced the texts, with "
                "sentinels after its entries."
            )

    def _padded(self, tokens: Tokens, length: int) -> Tensor:
        return torch.from_numpy(np.pad(tokens, (0, length - tokens.size), constant_values=self._end))


def _lengths(items: int, parts: int, random: np.random.Generator) -> Tokens:
    """Divide `items` into positive parts at random. All divisions are equally likely."""
    cuts = np.sort(random.choice(items - 1, parts - 1, replace=False)) + 1 if parts > 1 else np.empty(0, int)
    return np.diff(cuts, prepend=0, append=items)


def _mask(number: int, length: int) -> Tensor:
    return (torch.arange(length) < number).float()
