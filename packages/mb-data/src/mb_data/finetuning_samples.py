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

from mb_data.chat import Line, Turn, parse_line, turns_of
from mb_data.documents import Chunk, read_chunks
from mb_data.errors import NotEnoughSamplesError
from mb_data.finetuning_config import FinetuningDatasetConfig
from mb_data.finetuning_options import FinetuningOptions
from mb_data.prepared import cache_folder, found_or_made
from mb_data.tokenizers import Tokenizer
from mb_data.workers import map_in_order

FORMAT_VERSION = 1
"""Part of the fingerprint: a change of what is written makes new folders."""

_RECORD, _STARTS, _TOKENS, _LEARNED = "samples.json", "starts.npy", "tokens.bin", "learned.bin"
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The ids of a sample, and which of them the model is to predict."""

    ids: list[int]
    learned: list[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCount:
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
    learned: NDArray[np.uint8]
    starts: NDArray[np.int64]
    count: SampleCount
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
    encoder = SampleEncoder(tokenizer=tokenizer, options=options, longest=config.longest_sample)

    def build(folder: Path) -> None:
        chunks = map_in_order(encoder, read_chunks([file]), workers=config.tokenizer_workers)
        count = _write(folder, chunks)
        if count.samples == 0:
            raise NotEnoughSamplesError(
                f"{file}: has no sample ({count.left_out} lines were left out, because nothing of their answer was "
                f"left within {config.longest_sample} tokens). Give lines, or a longer dataset.seq_length."
            )

    return found_or_made(cache_folder(config.cache_dir) / "finetuning" / name, find=_find, build=build)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEncoder:
    """Turns chunks of lines into samples. Pickled once for each worker process."""

    tokenizer: Tokenizer
    options: FinetuningOptions
    longest: int

    def __call__(self, chunk: Chunk) -> tuple[list[Sample], SampleCount]:
        """Encode the lines of a chunk, and count what became of them.

        Raises:
            BadDocumentError: One of them is no sample.
        """
        samples, cut, left_out = [], 0, 0
        for number, content in enumerate(chunk.documents, start=chunk.first_line or 1):
            line = parse_line(content, place=f"{chunk.path}:{number}")
            if line is None:
                continue
            sample, whole = self.sample(line)
            if any(sample.learned[1:]):
                samples.append(sample)
                cut += not whole
            else:
                left_out += 1
        return samples, SampleCount(samples=len(samples), cut=cut, left_out=left_out)

    def sample(self, line: Line) -> tuple[Sample, bool]:
        """Return the sample of a line, and whether it is whole.

        One that gives the model more than `longest` tokens loses the end or the beginning of the prompt's
        `truncation_field`, and, where that is not enough, its own end.
        """
        encode = partial(encode_turns, tokenizer=self.tokenizer, options=self.options)
        most = self.longest + 1
        sample = encode(turns_of(line, self.options))
        if len(sample.ids) <= most:
            return sample, True
        if not line.is_conversation:
            ids = self.tokenizer.encode(line.values[self.options.truncation_field])
            while ids and len(sample.ids) > most:
                kept = max(0, len(ids) - (len(sample.ids) - most))
                ids = ids[len(ids) - kept :] if self.options.truncation_method == "left" else ids[:kept]
                sample = encode(turns_of(line, self.options, shortened=self.tokenizer.decode(ids)))
        return Sample(ids=sample.ids[:most], learned=sample.learned[:most]), False


def encode_turns(turns: list[Turn], *, tokenizer: Tokenizer, options: FinetuningOptions) -> Sample:
    """Encode what is said, turn behind turn, each ended by the end of a document.

    Prompt and answer are encoded as one text, as the model reads them when it is asked; learned is what differs from
    the prompt alone. Tokens that the tokenizer puts before every text, such as a begin of sequence, stand before the
    first one only.
    """
    around, end = tokenizer.encode(""), tokenizer.eod
    ids: list[int] = []
    learned: list[bool] = []
    for turn in turns:
        whole, prompt = tokenizer.encode(turn.prompt + turn.answer), tokenizer.encode(turn.prompt)
        answer_from = _same(whole, prompt)
        if options.add_eos and whole[-1:] != [end]:
            whole = [*whole, end]
        begin = _same(whole, around) if ids else 0
        ids += whole[begin:]
        learned += [
            not options.answer_only_loss or place >= answer_from for place in range(begin, len(whole))
        ]
    return Sample(ids=ids, learned=learned)


def _same(ids: list[int], others: list[int]) -> int:
    """Return how many ids two lists begin with alike."""
    differ = (place for place, pair in enumerate(zip(ids, others, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(ids), len(others)))


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _write(folder: Path, chunks: Iterator[tuple[list[Sample], SampleCount]]) -> SampleCount:
    total, starts = SampleCount(), [0]
    with (folder / _TOKENS).open("wb") as tokens, (folder / _LEARNED).open("wb") as learned:
        for samples, count in chunks:
            for sample in samples:
                tokens.write(np.array(sample.ids, np.int32).tobytes())
                learned.write(np.array(sample.learned, np.uint8).tobytes())
                starts.append(starts[-1] + len(sample.ids))
            total = SampleCount(
                samples=total.samples + count.samples,
                cut=total.cut + count.cut,
                left_out=total.left_out + count.left_out,
            )
    np.save(folder / _STARTS, np.array(starts, np.int64))
    (folder / _RECORD).write_text(json.dumps(asdict(total)))
    return total


def _find(folder: Path, *, reused: bool) -> TokenizedSamples | None:
    """Return the samples in a folder; None when there are none, or some that were damaged."""
    try:
        record: dict[str, Any] = json.loads((folder / _RECORD).read_text())
        starts = np.load(folder / _STARTS)
        tokens = np.memmap(folder / _TOKENS, np.int32, mode="r")
        learned = np.memmap(folder / _LEARNED, np.uint8, mode="r")
        count = SampleCount(**record)
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        return None
    if len(starts) != count.samples + 1 or not len(tokens) == len(learned) == starts[-1]:
        return None
    return TokenizedSamples(
        tokens=tokens, learned=learned, starts=starts, count=count, folder=folder, reused=reused
    )
