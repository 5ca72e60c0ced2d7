"""Fill-in-the-middle transformation: documents split into prefix, middle and suffix, and reordered.

Source: Bavarian et al., "Efficient Training of Language Models to Fill in the Middle" (2022), section 3: documents are
split between characters, the parts are tokenized separately, and documents are rewritten within a sample of fixed
length.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mb_data.errors import TokenizerError
from mb_data.fim.config import FillInTheMiddleOptions
from mb_data.fim.rules import FIM_PARTS
from mb_data.t5.dataset import TextDataset
from mb_data.tokenizers.base import Tokenizer, token_id

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FIMTokens:
    """Ids of the special tokens of fill-in-the-middle data."""

    prefix: int
    middle: int
    suffix: int
    end: int
    """End-of-document id."""
    pad: int
    """Padding at the end of samples that are too short."""
    split: int | None
    """Separator of the fragments of a document; None: documents are not divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPoints:
    """Two split points of a text, as fractions of its length, and the order of the parts."""

    fractions: tuple[float, float]
    suffix_first: bool


def find_fim_tokens(tokenizer: Tokenizer, section: FillInTheMiddleOptions) -> FIMTokens:
    """Look up the special tokens of a section in a tokenizer.

    Raises:
        TokenizerError: The tokenizer lacks some of the tokens; the message names them. Or the tokenizer adds special
            tokens around each text, which would surround each of the three parts.
    """
    around = tokenizer.encode("")
    if around:
        raise TokenizerError(
            f"dataset.fim_extra_tokens: the tokenizer adds special tokens around each text ({around}); they would also "
            "surround each part of a document. Set tokenizer.tokenizer_hf_no_include_special_tokens=true."
        )
    names = dict(section.fim_extra_tokens or {})
    if section.fim_split_sample is not None:
        names["split"] = section.fim_split_sample
    by_part = {part: token_id(tokenizer, name) for part, name in names.items()}
    missing = [names[part] for part, number in by_part.items() if number is None]
    if missing or not {*FIM_PARTS} <= {*by_part}:
        raise TokenizerError(
            f"dataset.fim_extra_tokens: the tokenizer has no {', '.join(missing) or 'such tokens'}; as text "
            f"they could not be distinguished from the document. Set tokenizer.special_tokens={missing}, or use names "
            "that the tokenizer has."
        )
    ids = {part: number for part, number in by_part.items() if number is not None}
    end = ids.get("eod", tokenizer.eod)
    return FIMTokens(
        prefix=ids["prefix"],
        middle=ids["middle"],
        suffix=ids["suffix"],
        end=end,
        pad=ids.get("pad", end),
        split=ids.get("split"),
    )


class FIMTransform:
    """Transformation of a sample that reorders its documents.

    The order is prefix, suffix, middle (PSM) or suffix, prefix, middle (SPM). A special token precedes each part.

    Each document is rewritten separately and keeps its end-of-document token. A rewritten document is longer by at
    least three tokens. The last document of a sample, which continues in another sample anyway, is therefore truncated
    before it is split: its text loses tokens, but no special token is lost. If every document is rewritten, every
    sample contains the special tokens.

    A text is split between characters if its tokens equal the encoding of the text. Otherwise, for example if a sample
    starts within a character or a word, it is split between tokens, and no token changes.

    Args:
        tokenizer: Tokenizer that produced the tokens.
        section: Rates, and the prefix of texts that are not rewritten.
        tokens: Ids of the special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, section: FillInTheMiddleOptions, tokens: FIMTokens) -> None:
        self._tokenizer, self._section, self.tokens = tokenizer, section, tokens

    def __call__(self, sample: Tokens, random: np.random.Generator) -> Tokens:
        """Return the rewritten sample, which has the same length or is a few tokens shorter."""
        output: list[Tokens] = []
        room = sample.size
        for piece, end, points in self._iter_pieces(sample, random):
            body, complete = (piece, True) if points is None else self._rewrite(piece, points, room)
            closed = np.append(body, end) if complete and end is not None else body
            output.append(closed[:room])
            room -= min(room, closed.size)
            if not room or not complete:
                break
        return np.concatenate(output)

    def _iter_pieces(
        self, sample: Tokens, random: np.random.Generator
    ) -> Iterator[tuple[Tokens, int | None, SplitPoints | None]]:
        """Yield (document or fragment, token that follows it or None, split points or None)."""
        rate, fragment_rate = self._section.fim_rate or 0.0, self._section.fim_fragment_rate or 0.0
        for document, end in _split_at(sample, self.tokens.end):
            chosen = random.random() < rate
            fragments = [*_split_at(document, self.tokens.split)]
            for fragment, mark in fragments:
                rewrite = chosen and (len(fragments) == 1 or random.random() < fragment_rate)
                points = self._draw_split(random) if rewrite and self._can_be_split(fragment) else None
                yield fragment, end if mark is None else mark, points

    def _draw_split(self, random: np.random.Generator) -> SplitPoints:
        first, second = sorted(random.random(2).tolist())
        return SplitPoints(
            fractions=(first, second), suffix_first=random.random() < (self._section.fim_spm_rate or 0.0)
        )

    def _can_be_split(self, piece: Tokens) -> bool:
        """Return True if the text is not empty and does not start with `fim_no_prefix`."""
        unchanged_prefix = self._section.fim_no_prefix
        return piece.size > 0 and (
            unchanged_prefix is None
            or not self._tokenizer.decode(piece.tolist()).startswith(unchanged_prefix)
        )

    def _rewrite(self, piece: Tokens, points: SplitPoints, room: int) -> tuple[Tokens, bool]:
        """Rewrite the longest start of a text that fits into `room`. Return it, and True if that is the entire text.

        The rewritten length is known only after encoding, because the parts are tokenized separately. The loop
        therefore shortens the text until the result fits.
        """
        keep = min(piece.size, room - len(FIM_PARTS))
        while keep > 0:
            rewritten = self._arrange(self._split_text(piece[:keep].tolist(), points.fractions), points)
            if rewritten.size <= room:
                return rewritten, keep == piece.size
            keep -= rewritten.size - room
        prefix = piece[: max(0, room - len(FIM_PARTS))].tolist()
        return self._arrange(_split_tokens(prefix, points.fractions), points) if prefix else piece[
            :room
        ], False

    def _split_text(self, tokens: list[int], fractions: tuple[float, float]) -> list[list[int]]:
        """Split a text into three parts: between characters, or between tokens if it does not encode to `tokens`."""
        text = self._tokenizer.decode(tokens)
        if self._tokenizer.encode(text) != tokens:
            return _split_tokens(tokens, fractions)
        first, second = (int(position * (len(text) + 1)) for position in fractions)
        return [self._tokenizer.encode(part) for part in (text[:first], text[first:second], text[second:])]

    def _arrange(self, parts: Sequence[list[int]], points: SplitPoints) -> Tokens:
        prefix, middle, suffix = parts
        marks = self.tokens
        if points.suffix_first:
            ids = [marks.prefix, marks.suffix, *suffix, marks.middle, *prefix, *middle]
        else:
            ids = [marks.prefix, *prefix, marks.suffix, *suffix, marks.middle, *middle]
        return np.array(ids, dtype=np.int64)


class FIMDataset:
    """Dataset of GPT samples with the fill-in-the-middle transformation applied.

    Sample i is a pure function of text i, the seed and i. It does not depend on the order of reading, the number of
    ranks or the number of workers, so the number of consumed samples is the complete position. Samples that are too
    short are padded; padding is excluded from the loss.

    Args:
        texts: Samples of Megatron's GPT datasets, with `tokens` and `labels` of equal length, shifted by one token.
        transform: Transformation of a sample.
        seed: Seed of the choice of documents and split points.
        reset_position_ids: Restart position ids after each end-of-document token.
        reset_attention_mask: Prevent attention across end-of-document tokens, if samples have an attention mask.
        eod_mask_loss: Exclude end-of-document tokens from the loss.
    """

    def __init__(
        self,
        texts: TextDataset,
        *,
        transform: FIMTransform,
        seed: int,
        reset_position_ids: bool = False,
        reset_attention_mask: bool = False,
        eod_mask_loss: bool = False,
    ) -> None:
        self._texts, self._transform, self._seed = texts, transform, seed
        self._resets, self._mask_resets, self._mask_ends = (
            reset_position_ids,
            reset_attention_mask,
            eod_mask_loss,
        )

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._texts)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        """Return one sample, with the keys of the text."""
        text = self._texts[index]
        sequence = np.append(text["tokens"].numpy(), text["labels"][-1].numpy()).astype(np.int64)
        rewritten = self._transform(sequence, np.random.default_rng((self._seed, index)))
        padded = np.full_like(sequence, self._transform.tokens.pad)
        padded[: rewritten.size] = rewritten
        tokens, labels = torch.from_numpy(padded[:-1].copy()), torch.from_numpy(padded[1:].copy())
        ends = tokens == self._transform.tokens.end
        loss_mask = (torch.arange(1, sequence.size) < rewritten.size).float()
        if self._mask_ends:
            loss_mask[ends] = 0.0
        sample = {
            **text,
            "tokens": tokens,
            "labels": labels,
            "loss_mask": loss_mask,
            "position_ids": _position_ids(ends) if self._resets else torch.arange(tokens.numel()),
        }
        if "attention_mask" in text and self._mask_resets:
            sample["attention_mask"] = _attention_mask(ends)
        return sample


def _split_tokens(tokens: list[int], fractions: tuple[float, float]) -> list[list[int]]:
    """Split tokens into three parts at fractions of their length."""
    first, second = (int(position * (len(tokens) + 1)) for position in fractions)
    return [tokens[:first], tokens[first:second], tokens[second:]]


def _split_at(tokens: Tokens, end: int | None) -> Iterator[tuple[Tokens, int | None]]:
    """Split tokens at each `end`; yield (segment, end), then (tail, None)."""
    start = 0
    for position in [] if end is None else np.flatnonzero(tokens == end).tolist():
        yield tokens[start:position], end
        start = position + 1
    yield tokens[start:], None


def _document_ids(ends: Tensor) -> Tensor:
    """Return the index of each token's document; an end-of-document token belongs to the document that it ends."""
    return ends.long().cumsum(0) - ends.long()


def _position_ids(ends: Tensor) -> Tensor:
    """Return position ids that start at 0 in each document."""
    indices = torch.arange(ends.numel())
    starts = torch.zeros_like(indices)
    starts[1:] = torch.where(ends[:-1], indices[1:], 0)
    return indices - starts.cummax(0).values


def _attention_mask(ends: Tensor) -> Tensor:
    """Return Megatron's mask [1, tokens, tokens]: True for later tokens and tokens of other documents."""
    documents = _document_ids(ends)
    same = documents[:, None] == documents[None, :]
    return ~(same & torch.ones_like(same).tril())[None]
