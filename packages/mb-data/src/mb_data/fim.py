"""Fill-in-the-middle: documents cut in three, so that a model learns to write the part between two others.

Source: Bavarian et al., "Efficient Training of Language Models to Fill in the Middle" (2022), section 3: the cuts are
between characters, the parts are tokenized by themselves, and documents are rewritten within a sample of fixed length.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mb_data.errors import TokenizerError
from mb_data.fim_config import FillInTheMiddleOptions
from mb_data.fim_rules import FIM_PARTS
from mb_data.t5 import TextDataset
from mb_data.tokenizers import Tokenizer, token_id

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FIMTokens:
    """Ids of the special tokens."""

    prefix: int
    middle: int
    suffix: int
    end: int
    """Ends a document."""
    pad: int
    """Fills what a rewritten sample is short of."""
    split: int | None
    """Divides a document into fragments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPoints:
    """Where and how one text is cut, as parts of its length."""

    fractions: tuple[float, float]
    suffix_first: bool


def find_fim_tokens(tokenizer: Tokenizer, section: FillInTheMiddleOptions) -> FIMTokens:
    """Look the special tokens of a section up in a tokenizer.

    Raises:
        TokenizerError: The tokenizer lacks some of them, which the message names; or it puts tokens around each text,
            and so would around each of three parts.
    """
    around = tokenizer.encode("")
    if around:
        raise TokenizerError(
            f"dataset.fim_extra_tokens: the tokenizer puts special tokens around each text ({around}), and so would "
            "around each part of a document. Set tokenizer.tokenizer_hf_no_include_special_tokens=true."
        )
    names = dict(section.fim_extra_tokens or {})
    if section.fim_split_sample is not None:
        names["split"] = section.fim_split_sample
    found = {part: token_id(tokenizer, name) for part, name in names.items()}
    missing = [names[part] for part, number in found.items() if number is None]
    if missing or not {*FIM_PARTS} <= {*found}:
        raise TokenizerError(
            f"dataset.fim_extra_tokens: the tokenizer has no {', '.join(missing) or 'such tokens'}; what they stand "
            f"for could not be told from text. Set tokenizer.special_tokens={missing}, or use the names that it has."
        )
    ids = {part: number for part, number in found.items() if number is not None}
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
    """Rewrites the documents of a sample: prefix, suffix, middle, or suffix, prefix, middle, each behind its token.

    Documents stay documents: each is rewritten by itself, and followed by the end that it had. A rewritten one is
    longer by three tokens or a few more, so of the last in a sample, which goes on in another sample anyway, the end of
    the text is left out, but none of the special tokens. So where every document is rewritten, each sample has them.

    A text is cut between characters, wherever its tokens are those that it encodes to; where they are not, as where
    a sample starts within a character or a word, it is cut between tokens, and none of them is changed.

    Args:
        tokenizer: The one that made the tokens.
        section: The rates, and what is left alone.
        tokens: The special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, section: FillInTheMiddleOptions, tokens: FIMTokens) -> None:
        self._tokenizer, self._section, self.tokens = tokenizer, section, tokens

    def __call__(self, sample: Tokens, random: np.random.Generator) -> Tokens:
        """Rewrite a sample into one that is as long or, by a few tokens, shorter."""
        output: list[Tokens] = []
        room = sample.size
        for piece, end, cut in self._iter_pieces(sample, random):
            body, whole = (piece, True) if cut is None else self._rewrite(piece, cut, room)
            closed = np.append(body, end) if whole and end is not None else body
            output.append(closed[:room])
            room -= min(room, closed.size)
            if not room or not whole:
                break
        return np.concatenate(output)

    def _iter_pieces(
        self, sample: Tokens, random: np.random.Generator
    ) -> Iterator[tuple[Tokens, int | None, SplitPoints | None]]:
        """Yield each document or fragment, what follows it, and how it is cut, if it is."""
        rate, fragment_rate = self._section.fim_rate or 0.0, self._section.fim_fragment_rate or 0.0
        for document, end in _split_at(sample, self.tokens.end):
            chosen = random.random() < rate
            fragments = [*_split_at(document, self.tokens.split)]
            for fragment, mark in fragments:
                rewrite = chosen and (len(fragments) == 1 or random.random() < fragment_rate)
                cut = self._draw_split(random) if rewrite and self._can_be_split(fragment) else None
                yield fragment, end if mark is None else mark, cut

    def _draw_split(self, random: np.random.Generator) -> SplitPoints:
        first, second = sorted(random.random(2).tolist())
        return SplitPoints(
            fractions=(first, second), suffix_first=random.random() < (self._section.fim_spm_rate or 0.0)
        )

    def _can_be_split(self, piece: Tokens) -> bool:
        """Say whether there is anything to cut, and it does not start with the text that is left alone."""
        unchanged_prefix = self._section.fim_no_prefix
        return piece.size > 0 and (
            unchanged_prefix is None
            or not self._tokenizer.decode(piece.tolist()).startswith(unchanged_prefix)
        )

    def _rewrite(self, piece: Tokens, cut: SplitPoints, room: int) -> tuple[Tokens, bool]:
        """Rewrite as much of the start of a text as there is room for, and say whether that is all of it."""
        keep = min(piece.size, room - len(FIM_PARTS))
        while keep > 0:
            rewritten = self._arrange(self._split_text(piece[:keep].tolist(), cut.fractions), cut)
            if rewritten.size <= room:
                return rewritten, keep == piece.size
            keep -= rewritten.size - room
        few = piece[: max(0, room - len(FIM_PARTS))].tolist()
        return self._arrange(_split_tokens(few, cut.fractions), cut) if few else piece[:room], False

    def _split_text(self, tokens: list[int], fractions: tuple[float, float]) -> list[list[int]]:
        """Cut a text in three: between characters, or between tokens where it does not encode to these."""
        text = self._tokenizer.decode(tokens)
        if self._tokenizer.encode(text) != tokens:
            return _split_tokens(tokens, fractions)
        first, second = (int(position * (len(text) + 1)) for position in fractions)
        return [self._tokenizer.encode(part) for part in (text[:first], text[first:second], text[second:])]

    def _arrange(self, parts: Sequence[list[int]], cut: SplitPoints) -> Tokens:
        prefix, middle, suffix = parts
        marks = self.tokens
        if cut.suffix_first:
            ids = [marks.prefix, marks.suffix, *suffix, marks.middle, *prefix, *middle]
        else:
            ids = [marks.prefix, *prefix, marks.suffix, *suffix, marks.middle, *middle]
        return np.array(ids, dtype=np.int64)


class FIMDataset:
    """Samples of a GPT, rewritten: sample number i is a pure function of text number i, the seed and i.

    Nothing depends on the order of reading, the number of ranks or of workers, so the number of consumed samples is the
    whole position, as for texts. What a sample is short of is padding, which is left out of the loss.

    Args:
        texts: Samples of Megatron's GPT datasets, with `tokens` and `labels` of equal length, one token apart.
        filler: Rewrites them.
        seed: Of what is rewritten and where it is cut.
        reset_position_ids: Start positions again after each end of document.
        reset_attention_mask: Do not attend across one, where samples have an attention mask.
        eod_mask_loss: Leave ends of documents out of the loss.
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
        """Return one sample, with the keys that the text has."""
        text = self._texts[index]
        whole = np.append(text["tokens"].numpy(), text["labels"][-1].numpy()).astype(np.int64)
        rewritten = self._transform(whole, np.random.default_rng((self._seed, index)))
        padded = np.full_like(whole, self._transform.tokens.pad)
        padded[: rewritten.size] = rewritten
        tokens, labels = torch.from_numpy(padded[:-1].copy()), torch.from_numpy(padded[1:].copy())
        ends = tokens == self._transform.tokens.end
        loss_mask = (torch.arange(1, whole.size) < rewritten.size).float()
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
    """Cut tokens in three at parts of their length."""
    first, second = (int(position * (len(tokens) + 1)) for position in fractions)
    return [tokens[:first], tokens[first:second], tokens[second:]]


def _split_at(tokens: Tokens, end: int | None) -> Iterator[tuple[Tokens, int | None]]:
    """Yield what stands before each `end` with that, and what stands behind the last without."""
    start = 0
    for position in [] if end is None else np.flatnonzero(tokens == end).tolist():
        yield tokens[start:position], end
        start = position + 1
    yield tokens[start:], None


def _document_ids(ends: Tensor) -> Tensor:
    """Number the document of each token; an end belongs to the one that it ends."""
    return ends.long().cumsum(0) - ends.long()


def _position_ids(ends: Tensor) -> Tensor:
    """Count from 0 in each document."""
    indices = torch.arange(ends.numel())
    starts = torch.zeros_like(indices)
    starts[1:] = torch.where(ends[:-1], indices[1:], 0)
    return indices - starts.cummax(0).values


def _attention_mask(ends: Tensor) -> Tensor:
    """Return Megatron's mask [1, tokens, tokens]: True where a token is behind, or in another document."""
    documents = _document_ids(ends)
    same = documents[:, None] == documents[None, :]
    return ~(same & torch.ones_like(same).tril())[None]
