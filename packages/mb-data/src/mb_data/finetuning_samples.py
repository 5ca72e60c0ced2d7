"""Samples for fine-tuning: token ids, and which of them are learned; tokenized once, and kept by content.

Kept are the files `tokens.bin` (int32) and `learned.bin` (bytes, 1 where a token is learned), sample behind sample,
`starts.npy` (int64: where each begins, and the end of the last) and `samples.json`, in a folder named by a hash of
the lines, the tokenizer and the settings.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mb_data.cache_dir import load_or_build, resolve_cache_dir
from mb_data.chat import ChatTurn, JsonLine, parse_line, parse_turns
from mb_data.documents import DocumentChunk, read_chunks
from mb_data.errors import NotEnoughSamplesError
from mb_data.finetuning_config import FinetuningDatasetConfig
from mb_data.finetuning_options import FinetuningOptions
from mb_data.tokenizers import Tokenizer
from mb_data.workers import map_in_order

FORMAT_VERSION = 1
"""Part of the fingerprint: a change of what is written makes new folders."""

_RECORD, _STARTS, _TOKENS, _LOSS_MASK = "samples.json", "starts.npy", "tokens.bin", "learned.bin"
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSample:
    """The ids of a sample, and which of them the model is to predict."""

    ids: list[int]
    loss_mask: list[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizationCounts:
    """What became of the lines of a file."""

    samples: int = 0
    cut: int = 0
    """Samples that were longer, and lost a part of the prompt or their end."""
    left_out: int = 0
    """Lines of which no learned token was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedSamples:
    """The samples of a file, mapped from the disk."""

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    starts: NDArray[np.int64]
    count: TokenizationCounts
    folder: Path
    reused: bool
    """They were there already."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens that each sample gives the model: one less than it has, as each is predicted from those before."""
        return np.diff(self.starts) - 1

    @property
    def attention_length(self) -> float:
        """Length of a sequence that has the attention of these per token: their squares' sum over their sum."""
        lengths = self.lengths.astype(np.float64)
        return float((lengths**2).sum() / lengths.sum())

    def first(self, number: int | None) -> "TokenizedSamples":
        """Return the first samples; None: all."""
        return self if number is None else replace(self, starts=self.starts[: number + 1])


def tokenize_samples(
    file: Path, *, config: FinetuningDatasetConfig, tokenizer: Tokenizer
) -> TokenizedSamples:
    """Tokenize the lines of a file, or find that done already. Reads the whole file to know. Not collective.

    Args:
        file: JSON lines.
        config: The section; not changed.
        tokenizer: Turns text into ids; for several workers picklable.

    Raises:
        DataPathError: The file is not there.
        BadDocumentError: A line is no sample; named by file and line.
        NotEnoughSamplesError: There are no samples.
    """
    options = config.options
    described = [FORMAT_VERSION, tokenizer.fingerprint, config.longest_sample, asdict(options), _digest(file)]
    name = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]
    encoder = LineEncoder(tokenizer=tokenizer, options=options, longest=config.longest_sample)

    def build(folder: Path) -> None:
        chunks = map_in_order(encoder, read_chunks([file]), workers=config.tokenizer_workers)
        count = _write(folder, chunks)
        if count.samples == 0:
            raise NotEnoughSamplesError(
                f"{file}: has no sample ({count.left_out} lines were left out, because nothing of their answer was "
                f"left within {config.longest_sample} tokens). Give lines, or a longer dataset.seq_length."
            )

    return load_or_build(resolve_cache_dir(config.cache_dir) / "finetuning" / name, load=_load, build=build)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEncoder:
    """Turns chunks of lines into samples. Pickled once for each worker process."""

    tokenizer: Tokenizer
    options: FinetuningOptions
    longest: int

    def __call__(self, chunk: DocumentChunk) -> tuple[list[EncodedSample], TokenizationCounts]:
        """Encode the lines of a chunk, and count what became of them.

        Raises:
            BadDocumentError: One of them is no sample.
        """
        samples, cut, left_out = [], 0, 0
        for number, content in enumerate(chunk.documents, start=chunk.first_line or 1):
            line = parse_line(content, location=f"{chunk.path}:{number}")
            if line is None:
                continue
            sample, whole = self.sample(line)
            if any(sample.loss_mask[1:]):
                samples.append(sample)
                cut += not whole
            else:
                left_out += 1
        return samples, TokenizationCounts(samples=len(samples), cut=cut, left_out=left_out)

    def sample(self, line: JsonLine) -> tuple[EncodedSample, bool]:
        """Return the sample of a line, and whether it is whole.

        One that gives the model more than `longest` tokens loses the end or the beginning of the prompt's
        `truncation_field`, and, where that is not enough, its own end.
        """
        encode = partial(encode_conversation, tokenizer=self.tokenizer, options=self.options)
        most = self.longest + 1
        sample = encode(parse_turns(line, self.options))
        if len(sample.ids) <= most:
            return sample, True
        if not line.is_conversation:
            ids = self.tokenizer.encode(line.values[self.options.truncation_field])
            while ids and len(sample.ids) > most:
                kept = max(0, len(ids) - (len(sample.ids) - most))
                ids = ids[len(ids) - kept :] if self.options.truncation_method == "left" else ids[:kept]
                sample = encode(parse_turns(line, self.options, truncated=self.tokenizer.decode(ids)))
        return EncodedSample(ids=sample.ids[:most], loss_mask=sample.loss_mask[:most]), False


def encode_conversation(
    turns: list[ChatTurn], *, tokenizer: Tokenizer, options: FinetuningOptions
) -> EncodedSample:
    """Encode what is said, turn behind turn, each ended by the end of a document.

    Prompt and answer are encoded as one text, as the model reads them when it is asked; learned is what differs from
    the prompt alone. Tokens that the tokenizer puts before every text, such as a begin of sequence, stand before the
    first one only.
    """
    around, end = tokenizer.encode(""), tokenizer.eod
    ids: list[int] = []
    loss_mask: list[bool] = []
    for turn in turns:
        whole, prompt = tokenizer.encode(turn.prompt + turn.answer), tokenizer.encode(turn.prompt)
        answer_from = _common_prefix_length(whole, prompt)
        if options.add_eos and whole[-1:] != [end]:
            whole = [*whole, end]
        begin = _common_prefix_length(whole, around) if ids else 0
        ids += whole[begin:]
        loss_mask += [
            not options.answer_only_loss or position >= answer_from for position in range(begin, len(whole))
        ]
    return EncodedSample(ids=ids, loss_mask=loss_mask)


def _common_prefix_length(ids: list[int], others: list[int]) -> int:
    """Return how many ids two lists begin with alike."""
    differ = (position for position, pair in enumerate(zip(ids, others, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(ids), len(others)))


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _write(
    folder: Path, chunks: Iterator[tuple[list[EncodedSample], TokenizationCounts]]
) -> TokenizationCounts:
    total, starts = TokenizationCounts(), [0]
    with (folder / _TOKENS).open("wb") as tokens, (folder / _LOSS_MASK).open("wb") as loss_mask:
        for samples, count in chunks:
            for sample in samples:
                tokens.write(np.array(sample.ids, np.int32).tobytes())
                loss_mask.write(np.array(sample.loss_mask, np.uint8).tobytes())
                starts.append(starts[-1] + len(sample.ids))
            total = TokenizationCounts(
                samples=total.samples + count.samples,
                cut=total.cut + count.cut,
                left_out=total.left_out + count.left_out,
            )
    np.save(folder / _STARTS, np.array(starts, np.int64))
    (folder / _RECORD).write_text(json.dumps(asdict(total)))
    return total


def _load(folder: Path, *, reused: bool) -> TokenizedSamples | None:
    """Return the samples in a folder; None when there are none, or some that were damaged."""
    try:
        record: dict[str, Any] = json.loads((folder / _RECORD).read_text())
        starts = np.load(folder / _STARTS)
        tokens = np.memmap(folder / _TOKENS, np.int32, mode="r")
        loss_mask = np.memmap(folder / _LOSS_MASK, np.uint8, mode="r")
        count = TokenizationCounts(**record)
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        return None
    if len(starts) != count.samples + 1 or not len(tokens) == len(loss_mask) == starts[-1]:
        return None
    return TokenizedSamples(
        tokens=tokens, loss_mask=loss_mask, starts=starts, count=count, folder=folder, reused=reused
    )
