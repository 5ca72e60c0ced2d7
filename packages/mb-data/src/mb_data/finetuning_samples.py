"""Tokenized samples for fine-tuning: token ids with a loss mask, tokenized once and cached by content.

The cache folder is named by a hash of the lines, the tokenizer and the settings. It contains `tokens.bin` (int32) and
`learned.bin` (bytes, 1 if the loss covers the token), both with the samples concatenated, `starts.npy` (int64: the
offset of each sample, and the end of the last) and `samples.json`.
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
from mb_data.errors import DataPathError, NotEnoughSamplesError
from mb_data.finetuning_config import FinetuningDatasetConfig
from mb_data.finetuning_options import FinetuningOptions
from mb_data.tokenizers import Tokenizer
from mb_data.workers import map_in_order

FORMAT_VERSION = 1
"""Version of the files on disk. Part of the fingerprint, so that a change of the format creates new folders."""

_RECORD, _STARTS, _TOKENS, _LOSS_MASK = "samples.json", "starts.npy", "tokens.bin", "learned.bin"
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSample:
    """Token ids of a sample, and a mask of those that the loss covers."""

    ids: list[int]
    loss_mask: list[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizationCounts:
    """Numbers of samples, of truncated samples, and of skipped lines of a file."""

    samples: int = 0
    cut: int = 0
    """Samples that were too long and lost a part of the prompt or their end."""
    left_out: int = 0
    """Lines that were skipped because no token in the loss remained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedSamples:
    """Samples of a file, memory-mapped."""

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    starts: NDArray[np.int64]
    count: TokenizationCounts
    folder: Path
    reused: bool
    """True if the samples were found in the cache."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of input tokens of each sample: one less than its ids, because labels are shifted by one."""
        return np.diff(self.starts) - 1

    @property
    def attention_length(self) -> float:
        """Length of a sequence with the same attention cost per token: sum of squared lengths over sum of lengths."""
        lengths = self.lengths.astype(np.float64)
        return float((lengths**2).sum() / lengths.sum())

    def first(self, number: int | None) -> "TokenizedSamples":
        """Return the first `number` samples; None returns all."""
        return self if number is None else replace(self, starts=self.starts[: number + 1])


def tokenize_samples(
    file: Path, *, config: FinetuningDatasetConfig, tokenizer: Tokenizer
) -> TokenizedSamples:
    """Tokenize the lines of a file, or load the samples from the cache. Not collective.

    Every call reads the complete file to compute its hash.

    Args:
        file: JSON lines.
        config: The section; not modified.
        tokenizer: Converts text to ids. With several workers it must be picklable.

    Raises:
        DataPathError: The file does not exist.
        BadDocumentError: A line is not a sample. The message names file and line.
        NotEnoughSamplesError: The file has no samples.
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
                f"{file}: has no sample ({count.left_out} lines were skipped, because no token of the answer remained "
                f"within {config.longest_sample} tokens). Add lines, or increase dataset.seq_length."
            )

    return load_or_build(resolve_cache_dir(config.cache_dir) / "finetuning" / name, load=_load, build=build)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEncoder:
    """Function that converts chunks of lines to samples. Pickled once for each worker process."""

    tokenizer: Tokenizer
    options: FinetuningOptions
    longest: int

    def __call__(self, chunk: DocumentChunk) -> tuple[list[EncodedSample], TokenizationCounts]:
        """Encode the lines of a chunk. Return the samples and the counts.

        Raises:
            BadDocumentError: A line is not a sample.
        """
        samples, cut, left_out = [], 0, 0
        for number, content in enumerate(chunk.documents, start=chunk.first_line or 1):
            line = parse_line(content, location=f"{chunk.path}:{number}")
            if line is None:
                continue
            sample, complete = self.sample(line)
            if any(sample.loss_mask[1:]):
                samples.append(sample)
                cut += not complete
            else:
                left_out += 1
        return samples, TokenizationCounts(samples=len(samples), cut=cut, left_out=left_out)

    def sample(self, line: JsonLine) -> tuple[EncodedSample, bool]:
        """Return the sample of a line, and True if it is not truncated.

        A sample of more than `longest` input tokens loses the end or the beginning of the prompt's `truncation_field`.
        If that does not suffice, the end of the sample is truncated.
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
    """Encode consecutive turns, each followed by the end-of-document token.

    Prompt and answer of a turn are encoded as one text, as at inference, because tokens may span their boundary. The
    loss covers the ids that follow the common prefix with the encoded prompt. Tokens that the tokenizer adds before
    every text, such as a beginning-of-sequence token, appear only before the first turn.
    """
    around, end = tokenizer.encode(""), tokenizer.eod
    ids: list[int] = []
    loss_mask: list[bool] = []
    for turn in turns:
        turn_ids, prompt = tokenizer.encode(turn.prompt + turn.answer), tokenizer.encode(turn.prompt)
        answer_from = _common_prefix_length(turn_ids, prompt)
        if options.add_eos and turn_ids[-1:] != [end]:
            turn_ids = [*turn_ids, end]
        begin = _common_prefix_length(turn_ids, around) if ids else 0
        ids += turn_ids[begin:]
        loss_mask += [
            not options.answer_only_loss or position >= answer_from
            for position in range(begin, len(turn_ids))
        ]
    return EncodedSample(ids=ids, loss_mask=loss_mask)


def _common_prefix_length(ids: list[int], others: list[int]) -> int:
    """Return the length of the common prefix of two lists of ids."""
    differ = (position for position, pair in enumerate(zip(ids, others, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(ids), len(others)))


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except FileNotFoundError as error:
        raise DataPathError(
            f"{file}: no such file; samples are read from it. Correct dataset.dataset_root."
        ) from error
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
    """Return the samples in a folder; None if they are missing or damaged."""
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
