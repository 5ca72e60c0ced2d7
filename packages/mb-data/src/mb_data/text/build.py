"""Tokenization of text files and JSON lines into `.bin`/`.idx` pairs, with several processes and bounded memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mb_data.errors import CorpusError
from mb_data.progress import Progress
from mb_data.text.documents import DocumentChunk, decode_texts, input_files, read_chunks
from mb_data.text.indexed import IndexedSummary, IndexedWriter, token_dtype
from mb_data.text.workers import map_in_order
from mb_data.tokenizers.base import Tokenizer, encode_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """Concatenated token ids of the documents of a chunk."""

    tokens: NDArray[Any]
    lengths: list[int]
    read_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEncoder:
    """Function that converts chunks to token ids. Pickled once for each worker process."""

    tokenizer: Tokenizer
    json_key: str
    append_eod: bool

    def __call__(self, chunk: DocumentChunk) -> EncodedChunk:
        """Encode the documents of a chunk.

        Raises:
            BadDocumentError: A document cannot be read.
        """
        end = [self.tokenizer.eod] if self.append_eod else []
        texts = list(decode_texts(chunk, json_key=self.json_key))
        # the post-processor of a tokenizer may have appended it
        documents = [ids if ids[-1:] == end else ids + end for ids in encode_texts(self.tokenizer, texts)]
        dtype = token_dtype(self.tokenizer.vocab_size)
        return EncodedChunk(
            tokens=np.concatenate([np.array(ids, dtype) for ids in documents])
            if documents
            else np.empty(0, dtype),
            lengths=[len(ids) for ids in documents],
            read_bytes=chunk.read_bytes,
        )


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
    """Tokenize files into `prefix.bin` and `prefix.idx`.

    The output does not depend on the number of workers. A failed call leaves no files behind. Memory holds a few chunks
    of about one megabyte for each worker, and the largest document.

    Args:
        inputs: Files and folders. Each line of `.jsonl` and `.json` files is a JSON object, and each row of `.csv`,
            `.tsv`, `.parquet` and `.arrow` files a document. Any other file is one document. `.gz`, `.bz2`, `.xz` and
            `.zst` files are decompressed. Empty documents are skipped.
        tokenizer: Converts text to ids. With several workers it must be picklable and its class importable.
        prefix: Output path without suffix. Its folder is created.
        workers: Number of processes that tokenize; 1 uses the calling process.
        json_key: Key of the text in each JSON object, and column of the text in tables.
        append_eod: Append the tokenizer's `eod` to each document.
        progress: Called with the stage, the input bytes read, and the total number of input bytes.

    Raises:
        DataPathError: An input does not exist, or the inputs contain no files.
        BadDocumentError: A line or file cannot be read. The message names file and line.
        CorpusError: The inputs contain no text.
        FormatLibraryError: The library that reads the format of a file is not installed.
        WorkerError: A worker process was killed.
    """
    files = input_files(inputs)
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    encoder = ChunkEncoder(tokenizer=tokenizer, json_key=json_key, append_eod=append_eod)
    done_bytes, total = 0, sum(file.stat().st_size for file in files)
    with IndexedWriter(prefix, dtype=token_dtype(tokenizer.vocab_size)) as writer:
        for encoded in map_in_order(encoder, read_chunks(files, columns=[json_key]), workers=workers):
            writer.add_documents(encoded.tokens, lengths=encoded.lengths)
            done_bytes += encoded.read_bytes
            if progress is not None:
                progress("tokenize", done_bytes, total)
        if not writer.summary.documents:
            raise CorpusError(
                f"{', '.join(map(str, inputs))}: contains no text ({len(files)} "
                f"{'file' if len(files) == 1 else 'files'}, {total} bytes); there is nothing to train on. Pass files "
                "with text."
            )
    return writer.summary
