"""Tokenized samples for fine-tuning: token ids with a loss mask, tokenized once and cached by content.

The cache folder is named by a hash of the lines, the tokenizer and the settings. It contains `tokens.bin` (int32) and
`learned.bin` (bytes, 1 if the loss covers the token), both with the samples concatenated, `starts.npy` (int64: the
offset of each sample, and the end of the last) and `samples.json`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mb_data.build_cache import load_or_build, resolve_cache_dir
from mb_data.chat.encoding import begin_token
from mb_data.chat.samples import ChatEncoder, EncodedSample
from mb_data.chat.turns import ChatTurn, is_conversation, parse_turns
from mb_data.errors import DataPathError, NotEnoughSamplesError, TokenizerError
from mb_data.finetuning.config import FinetuningDatasetConfig
from mb_data.finetuning.files import require_rows
from mb_data.finetuning.options import FinetuningOptions
from mb_data.loading.mapped_files import require_complete
from mb_data.text.documents import DocumentChunk, read_chunks
from mb_data.text.input_files import input_files, read_blocks
from mb_data.text.workers import map_in_order
from mb_data.tokenizers.base import Tokenizer, end_document

FORMAT_VERSION = 2
"""Version of the files on disk. Part of the fingerprint, so that a change of the format creates new folders."""

_RECORD, _STARTS, _TOKENS, _LOSS_MASK = "samples.json", "starts.npy", "tokens.bin", "learned.bin"


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

    def require_complete(self) -> None:
        """Raise if a mapped file was cut short; call it before a read, which would kill this process.

        Raises:
            IndexedFormatError: A file was cut short.
        """
        for array, name in ((self.tokens, _TOKENS), (self.loss_mask, _LOSS_MASK)):
            require_complete(getattr(array, "_mmap", None), self.folder / name)

    def first(self, number: int | None) -> "TokenizedSamples":
        """Return the first `number` samples; None returns all."""
        return self if number is None else replace(self, starts=self.starts[: number + 1])


def tokenize_samples(
    file: Path, *, config: FinetuningDatasetConfig, tokenizer: Tokenizer
) -> TokenizedSamples:
    """Tokenize the lines of a file, or load the samples from the cache. Not collective.

    Every call reads the complete file to compute its hash.

    Args:
        file: JSON lines or rows of a table, or a folder of such files.
        config: The section; not modified.
        tokenizer: Converts text to ids. With several workers it must be picklable.

    Raises:
        DataPathError: The file does not exist.
        BadDocumentError: A line is not a sample. The message names file and line.
        NotEnoughSamplesError: The file has no samples.
        TokenizerError: The tokenizer lacks a chat template or a token that the options require.
        ChatTemplateError: The chat template cannot be parsed.
    """
    if not file.exists():
        raise DataPathError(f"{file}: no such file; samples are read from it. Correct dataset.dataset_root.")
    files = input_files([file])
    require_rows(files)
    encoder = LineEncoder.of(tokenizer, config.options, longest=config.longest_sample)
    described = [FORMAT_VERSION, tokenizer.fingerprint, *encoder.description, digest_files(files)]
    name = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]

    def build(folder: Path) -> None:
        chunks = map_in_order(encoder, read_chunks(files), workers=config.tokenizer_workers)
        count = write_samples(folder, chunks)
        if count.samples == 0:
            raise NotEnoughSamplesError(
                f"{file}: has no sample ({count.left_out} lines were skipped, because no token of the answer remained "
                f"within {config.longest_sample} tokens). Add lines, or increase dataset.seq_length."
            )

    return load_or_build(
        resolve_cache_dir(config.cache_dir) / "finetuning" / name, load=load_samples, build=build
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEncoder:
    """Function that converts chunks of lines to samples. Pickled once for each worker process."""

    tokenizer: Tokenizer
    options: FinetuningOptions
    longest: int
    begin: int | None = None
    """Token that begins every sample."""
    chat: ChatEncoder | None = None
    """Encoder of conversations; None: lines are inserted into the template of the options."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, options: FinetuningOptions, *, longest: int) -> "LineEncoder":
        """Return the encoder for a tokenizer and options.

        Raises:
            TokenizerError: The tokenizer lacks a chat template or a token that the options require.
            ChatTemplateError: The chat template cannot be parsed.
        """
        begin = begin_token(tokenizer) if options.add_bos else None
        if options.add_bos and begin is None:
            raise TokenizerError(
                "dataset.dataset_kwargs.add_bos: the tokenizer has no beginning-of-sequence token. "
                "Set bos_token in the tokenizer_config.json in its folder, or leave add_bos at false."
            )
        if options.sep_id is not None and options.sep_id >= tokenizer.vocab_size:
            raise TokenizerError(
                f"dataset.dataset_kwargs.sep_id: {options.sep_id} is not an entry of the tokenizer (vocab_size="
                f"{tokenizer.vocab_size}); the embedding has no row for it. Set the id of one of its tokens."
            )
        chat = ChatEncoder.of(tokenizer, options) if options.chat else None
        return cls(tokenizer=tokenizer, options=options, longest=longest, begin=begin, chat=chat)

    @property
    def description(self) -> list[Any]:
        """Everything in addition to the tokenizer that the samples depend on."""
        chat = [] if self.chat is None else self.chat.description
        return [self.longest, self.begin, asdict(self.options), chat]

    def __call__(self, chunk: DocumentChunk) -> tuple[list[EncodedSample], TokenizationCounts]:
        """Encode the lines of a chunk. Return the samples and the counts.

        Raises:
            BadDocumentError: A line is not a sample.
        """
        samples, cut, left_out = [], 0, 0
        for row, location in chunk.objects():
            for sample, complete in self.samples(row, location=location):
                if any(sample.loss_mask[1:]):
                    samples.append(sample)
                    cut += not complete
                else:
                    left_out += 1
        return samples, TokenizationCounts(samples=len(samples), cut=cut, left_out=left_out)

    def samples(self, row: Mapping[str, Any], *, location: str) -> list[tuple[EncodedSample, bool]]:
        """Return the samples of a row, each with True if it is not truncated."""
        if self.chat is None:
            return [self.sample(row, location=location)]
        max_ids = self.longest + 1
        encoded = self.chat(row, location=location)
        return [(sample.first(max_ids), len(sample.ids) <= max_ids) for sample in encoded]

    def sample(self, row: Mapping[str, Any], *, location: str) -> tuple[EncodedSample, bool]:
        """Return the sample of a templated row, and True if it is not truncated.

        A sample of more than `longest` input tokens loses the end or the beginning of each `truncation_field` of the
        prompt. If that does not suffice, the end of the sample is truncated.
        """

        def encode(shorter: Mapping[str, str] | None = None) -> EncodedSample:
            turns = parse_turns(row, self.options, location=location, truncated=shorter)
            return encode_conversation(
                turns, tokenizer=self.tokenizer, options=self.options, begin=self.begin
            )

        max_ids = self.longest + 1
        sample = encode()
        if len(sample.ids) <= max_ids:
            return sample, True
        if not is_conversation(row):
            texts = {name: self.tokenizer.encode(row[name]) for name in self.options.truncation_fields}
            while any(texts.values()) and len(sample.ids) > max_ids:
                texts = self._truncated(texts, excess=len(sample.ids) - max_ids)
                sample = encode({name: self.tokenizer.decode(ids) for name, ids in texts.items()})
        return sample.first(max_ids), False

    def _truncated(self, texts: Mapping[str, list[int]], *, excess: int) -> dict[str, list[int]]:
        """Return the ids of texts without `excess` ids, of which each text that has ids left loses an equal share."""
        num_texts = sum(bool(ids) for ids in texts.values())
        share = -(-excess // num_texts)
        lengths = {name: max(0, len(ids) - share) for name, ids in texts.items()}
        if self.options.truncation_method == "left":
            return {name: ids[len(ids) - lengths[name] :] for name, ids in texts.items()}
        return {name: ids[: lengths[name]] for name, ids in texts.items()}


def encode_conversation(
    turns: list[ChatTurn], *, tokenizer: Tokenizer, options: FinetuningOptions, begin: int | None = None
) -> EncodedSample:
    """Encode consecutive turns, each followed by the end-of-document token.

    Prompt and answer of a turn are encoded as one text, as at inference, because tokens may span their boundary. The
    loss covers the ids that follow the common prefix with the encoded prompt. Tokens that the tokenizer adds before
    every text, such as a beginning-of-sequence token, appear only before the first turn. `begin` precedes it, unless
    the tokenizer adds it. With `add_sep`, `sep_id` precedes every answer.
    """
    around = tokenizer.encode("")
    ids: list[int] = []
    loss_mask: list[bool] = []
    for turn in turns:
        turn_ids, prompt = tokenizer.encode(turn.prompt + turn.answer), tokenizer.encode(turn.prompt)
        answer_from = _common_prefix_length(turn_ids, prompt)
        if options.add_sep and options.sep_id is not None:
            turn_ids = [*turn_ids[:answer_from], options.sep_id, *turn_ids[answer_from:]]
            answer_from += 1
        if options.add_eos:
            turn_ids = end_document(turn_ids, tokenizer.eod)
        if begin is not None and not ids and turn_ids[:1] != [begin]:
            turn_ids, answer_from = [begin, *turn_ids], answer_from + 1
        first = _common_prefix_length(turn_ids, around) if ids else 0
        ids += turn_ids[first:]
        loss_mask += [
            not options.answer_only_loss or position >= answer_from
            for position in range(first, len(turn_ids))
        ]
    return EncodedSample(ids=ids, loss_mask=loss_mask)


def _common_prefix_length(ids: list[int], other_ids: list[int]) -> int:
    differ = (
        position for position, pair in enumerate(zip(ids, other_ids, strict=False)) if pair[0] != pair[1]
    )
    return next(differ, min(len(ids), len(other_ids)))


def digest_files(files: list[Path]) -> str:
    """Return a hash of the names and contents of files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        for block in read_blocks(file):
            digest.update(block)
    return digest.hexdigest()


def write_samples(
    folder: Path, chunks: Iterator[tuple[list[EncodedSample], TokenizationCounts]]
) -> TokenizationCounts:
    """Write chunks of samples into a folder. Return their total counts."""
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
    (folder / _RECORD).write_text(json.dumps(asdict(total)), encoding="utf-8")
    return total


def load_samples(folder: Path, *, reused: bool) -> TokenizedSamples | None:
    """Return the samples in a folder; None if they are missing or damaged."""
    try:
        record: dict[str, Any] = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
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
