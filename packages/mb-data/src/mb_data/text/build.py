"""Tokenization of text files and JSON lines into a `.bin`/`.idx` pair, with several processes and bounded memory."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mb_data.errors import CorpusError
from mb_data.progress import Progress
from mb_data.text.documents import DocumentChunk, read_chunks
from mb_data.text.indexed import IndexedSummary, IndexedWriter, token_dtype
from mb_data.text.input_files import input_files
from mb_data.text.selection import DUPLICATE, KEPT, Selection, SelectionReport, text_digest
from mb_data.text.workers import map_in_order
from mb_data.tokenizers.base import Tokenizer, encode_texts, end_document


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """Concatenated token ids of the documents of a chunk that were selected."""

    path: Path
    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    """Tokens of each document."""
    text_bytes: NDArray[np.int64]
    """Size of each text in UTF-8."""
    texts: list[str] | None
    """The texts, if duplicates are looked for: their hashes are compared in the order of the input."""
    report: SelectionReport
    read_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEncoder:
    """Function that converts chunks to token ids. Pickled once for each worker process."""

    tokenizer: Tokenizer
    selection: Selection
    append_eod: bool

    def __call__(self, chunk: DocumentChunk) -> EncodedChunk:
        """Select and encode the documents of a chunk.

        Raises:
            BadDocumentError: A document cannot be read.
            DocumentFunctionError: A function of the user failed.
        """
        report = SelectionReport()
        texts = [text for text, _ in self.selection.select(chunk, report)]
        if not self.selection.deduplicate:
            for text in texts:
                report.add(KEPT, text)
        documents = encode_texts(self.tokenizer, texts)
        if self.append_eod:
            documents = [end_document(ids, self.tokenizer.eod) for ids in documents]
        dtype = token_dtype(self.tokenizer.vocab_size)
        return EncodedChunk(
            path=chunk.path,
            tokens=np.concatenate([np.array(ids, dtype) for ids in documents])
            if documents
            else np.empty(0, dtype),
            lengths=np.array([len(ids) for ids in documents], np.int64),
            text_bytes=np.array([len(text.encode()) for text in texts], np.int64),
            texts=texts if self.selection.deduplicate else None,
            report=report,
            read_bytes=chunk.read_bytes,
        )


@dataclass(kw_only=True)
class InputCounts:
    """What one input file contributed."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """Sizes of a pair that was written, and where its documents come from."""

    summary: IndexedSummary
    selection: SelectionReport
    inputs: dict[str, InputCounts] = field(default_factory=dict)
    """Contribution of each file that has documents, by path."""


def build_indexed(
    inputs: Sequence[str | Path],
    *,
    tokenizer: Tokenizer,
    prefix: str | Path,
    workers: int = 1,
    json_key: str = "text",
    append_eod: bool = True,
    progress: Progress | None = None,
) -> IndexedSummary:
    """Tokenize files into `prefix.bin` and `prefix.idx`; see `build_pair`."""
    selection = Selection(json_key=json_key)
    return build_pair(
        inputs,
        tokenizer=tokenizer,
        prefix=prefix,
        workers=workers,
        selection=selection,
        append_eod=append_eod,
        progress=progress,
    ).summary


def build_pair(
    inputs: Sequence[str | Path],
    *,
    tokenizer: Tokenizer,
    prefix: str | Path,
    workers: int = 1,
    selection: Selection | None = None,
    append_eod: bool = True,
    progress: Progress | None = None,
) -> PairReport:
    """Tokenize files into `prefix.bin` and `prefix.idx`.

    The output does not depend on the number of workers. A failed call leaves no files behind. Memory holds a few chunks
    of about one megabyte for each worker, and the largest document.

    Args:
        inputs: Files and folders, also by URL. Each line of `.jsonl` and `.json` files is a JSON object, and each row
            of `.csv`, `.tsv`, `.parquet` and `.arrow` files a document. Any other file is one document. `.gz`, `.bz2`,
            `.xz` and `.zst` files are decompressed. Empty documents are skipped.
        tokenizer: Converts text to ids. With several workers it must be picklable and its class importable.
        prefix: Output path without suffix. Its folder is created.
        workers: Number of processes that tokenize; 1 uses the calling process.
        selection: Which documents are kept; None: all, with their text at `text`. To compare texts, memory holds about
            100 bytes for each.
        append_eod: Append the tokenizer's `eod` to each document.
        progress: Called with the stage, the input bytes read, and the total number of input bytes.

    Raises:
        DataPathError: An input does not exist, or the inputs contain no files.
        BadDocumentError: A line or file cannot be read. The message names file and line.
        CorpusError: The inputs contain no text, or none was kept.
        DocumentFunctionError: A function of the selection failed.
        FormatLibraryError: The library that reads the format of a file is not installed.
        WorkerError: A worker process was killed.
    """
    files = input_files(inputs)
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    selection = selection or Selection()
    encoder = ChunkEncoder(tokenizer=tokenizer, selection=selection, append_eod=append_eod)
    total = sum(file.stat().st_size for file in files)
    chunks = read_chunks(files, columns=selection.columns)
    return write_pair(
        chunks,
        encoder,
        prefix,
        workers=workers,
        is_duplicate=_seen_before() if selection.deduplicate else None,
        on_read=None if progress is None else lambda done: progress("tokenize", done, total),
        check=lambda counts: require_documents(counts, inputs, files=len(files), size=total),
    )


def require_documents(
    counts: SelectionReport, inputs: Sequence[str | Path], *, files: int, size: int
) -> None:
    """Reject inputs of which no document was kept.

    Raises:
        CorpusError: None was.
    """
    if counts.documents.get(KEPT):
        return
    dropped = ", ".join(f"{number} {reason}" for reason, number in counts.documents.items())
    raise CorpusError(
        f"{', '.join(map(str, inputs))}: contains no text{f' that is kept ({dropped})' if dropped else ''} "
        f"({files} {'file' if files == 1 else 'files'}, {size} bytes); there is nothing to train on. Pass files with "
        "text."
    )


def write_pair(
    chunks: Iterable[DocumentChunk],
    encoder: ChunkEncoder,
    prefix: str | Path,
    *,
    workers: int = 1,
    is_duplicate: Callable[[str], bool] | None = None,
    on_read: Callable[[int], None] | None = None,
    check: Callable[[SelectionReport], None] | None = None,
) -> PairReport:
    """Tokenize chunks into a pair, which may be empty.

    Args:
        chunks: Documents.
        encoder: Selects and encodes them.
        prefix: Output path without suffix, in a folder that exists.
        workers: Number of processes that tokenize.
        is_duplicate: Called with each text in order; True drops it.
        on_read: Called with the number of bytes read of the inputs.
        check: Called at the end with the counts. If it raises, no pair is written.

    Raises:
        The errors of `build_pair`, but for `CorpusError`.
    """
    selection = SelectionReport()
    inputs: dict[str, InputCounts] = {}
    done_bytes = 0
    with IndexedWriter(prefix, dtype=token_dtype(encoder.tokenizer.vocab_size)) as writer:
        for encoded in map_in_order(encoder, chunks, workers=workers):
            selection.merge(encoded.report)
            tokens, lengths, text_bytes = encoded.tokens, encoded.lengths, encoded.text_bytes
            if is_duplicate is not None and encoded.texts is not None:
                dropped = np.array([is_duplicate(text) for text in encoded.texts], bool)
                for text, is_dropped in zip(encoded.texts, dropped, strict=True):
                    selection.add(DUPLICATE if is_dropped else KEPT, text)
                tokens = tokens[np.repeat(~dropped, lengths)]
                lengths, text_bytes = lengths[~dropped], text_bytes[~dropped]
            writer.add_documents(tokens, lengths=lengths.tolist())
            if lengths.size:
                counts = inputs.setdefault(str(encoded.path), InputCounts())
                counts.documents += lengths.size
                counts.tokens += tokens.size
                counts.text_bytes += int(text_bytes.sum())
            done_bytes += encoded.read_bytes
            if on_read is not None:
                on_read(done_bytes)
        if check is not None:
            check(selection)
    return PairReport(summary=writer.summary, selection=selection, inputs=inputs)


def _seen_before() -> Callable[[str], bool]:
    digests: set[bytes] = set()

    def is_duplicate(text: str) -> bool:
        digest = text_digest(text)
        if digest in digests:
            return True
        digests.add(digest)
        return False

    return is_duplicate
