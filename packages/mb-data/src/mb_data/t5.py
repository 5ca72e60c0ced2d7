"""Texts taken apart for a T5: the encoder reads them with gaps, the decoder writes what was in the gaps.

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

from mb_data.errors import TokenizerError
from mb_data.span_corruption import SpanSizes

Tokens = NDArray[np.int64]


class TextDataset(Protocol):
    """Samples with equally long `tokens`, such as Megatron's GPT datasets."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]:
        """Return one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderPair:
    """What is read and what is written, without padding; each ends with an end of sequence."""

    encoder: Tokens
    labels: Tokens


def corrupt_spans(
    tokens: Tokens, sizes: SpanSizes, *, sentinels: Sequence[int], end: int, random: np.random.Generator
) -> EncoderDecoderPair:
    """Take a text apart at random places.

    The text starts with tokens that stay and ends with a span; in between both alternate, none of them empty, all
    divisions being equally likely. The encoder reads sentinel number k in the place of span number k; the decoder
    writes each span behind its sentinel.

    Args:
        tokens: `sizes.tokens` of them.
        sizes: How many go, in how many spans.
        sentinels: At least one for each span, in order.
        end: Id that closes both sequences.
        random: Is drawn from twice.

    Raises:
        ValueError: The text is not of that length.
    """
    if tokens.size != sizes.tokens:
        raise ValueError(
            f"corrupt_spans: a text of {tokens.size} tokens where {sizes.tokens} are taken apart; its last span would "
            "be longer or empty. Give texts of one length."
        )
    stay = _lengths(sizes.tokens - sizes.noise_tokens, sizes.spans, random)
    go = _lengths(sizes.noise_tokens, sizes.spans, random)
    edges = np.cumsum(np.stack([stay, go], axis=1).ravel())[:-1]
    pieces = np.split(tokens, edges)
    marks = [np.array([sentinel]) for sentinel in sentinels[: sizes.spans]]
    closed = [np.array([end])]
    read = [part for kept, mark in zip(pieces[::2], marks, strict=True) for part in (kept, mark)]
    written = [part for mark, span in zip(marks, pieces[1::2], strict=True) for part in (mark, span)]
    return EncoderDecoderPair(encoder=np.concatenate(read + closed), labels=np.concatenate(written + closed))


class T5Dataset:
    """Pairs from texts: sample number i is a pure function of text number i, the seed and i.

    Nothing depends on the order of reading, the number of ranks or the batch, so the number of consumed samples is the
    whole position, as for texts.

    A sample is a dictionary of tensors: `text_enc` and `enc_mask` [seq_length]; `text_dec`, `labels` and `loss_mask`
    [decoder_seq_length]. Masks are 1 for a token and 0 for padding; all are int64, but `loss_mask` is float32. The
    decoder starts with the end of a document and then reads its own labels; the same id pads both sequences.

    Args:
        texts: Samples with `tokens` of `sizes.tokens` each.
        sizes: How every text is taken apart.
        seq_length: Tokens of the encoder, with padding.
        decoder_seq_length: Tokens of the decoder, with padding.
        sentinels: At least one for each span, every one above all tokens of the texts.
        end: The id of the end of a document.
        seed: Of the places of the spans.

    Raises:
        ValueError: A sequence or the sentinels do not suffice.
        TokenizerError: When a sample is read: its text has a token that is no smaller than a sentinel. Looking for one
            costs a maximum over the text.
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
            raise ValueError(
                f"T5Dataset: seq_length={seq_length}, decoder_seq_length={decoder_seq_length}, {len(sentinels)} "
                f"sentinels, where a text of {sizes.tokens} tokens takes {needs}; nothing is cut off. Raise them, or "
                "shorten the text."
            )
        self._texts, self._sizes, self._seed = texts, sizes, seed
        self._lengths = seq_length, decoder_seq_length
        self._sentinels, self._end = sentinels, end
        self._lowest_sentinel = min(sentinels)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._texts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return one pair."""
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
                f"T5Dataset: text {index} has token {largest}, but sentinels begin at {self._lowest_sentinel}; a token "
                "could not be told from the mark of a span. Use the tokenizer that made the texts, with sentinels "
                "behind its entries."
            )

    def _padded(self, tokens: Tokens, length: int) -> Tensor:
        return torch.from_numpy(np.pad(tokens, (0, length - tokens.size), constant_values=self._end))


def _lengths(items: int, parts: int, random: np.random.Generator) -> Tokens:
    """Divide a number of items into so many positive parts; every way is equally likely."""
    cuts = np.sort(random.choice(items - 1, parts - 1, replace=False)) + 1 if parts > 1 else np.empty(0, int)
    return np.diff(cuts, prepend=0, append=items)


def _mask(number: int, length: int) -> Tensor:
    return (torch.arange(length) < number).float()
