"""Text files and JSON lines to `.bin`/`.idx` pairs, with several processes and bounded memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mb_data.documents import DocumentChunk, decode_texts, input_files, read_chunks
from mb_data.errors import CorpusError
from mb_data.indexed import IndexedSummary, IndexedWriter, token_dtype
from mb_data.tokenizers import Tokenizer
from mb_data.workers import map_in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """The token ids of a chunk's documents, one behind the other."""

    tokens: NDArray[Any]
    lengths: list[int]
    read_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEncoder:
    """Turns chunks into token ids. Pickled once for each worker process."""

    tokenizer: Tokenizer
    json_key: str
    append_eod: bool

    def __call__(self, chunk: DocumentChunk) -> EncodedChunk:
        """Encode a chunk's documents.

        Raises:
            BadDocumentError: One of them cannot be read.
        """
        end = [self.tokenizer.eod] if self.append_eod else []
        documents = [
            self.tokenizer.encode(text) + end for text in decode_texts(chunk, json_key=self.json_key)
        ]
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
    progress: Callable[[str, int, int], None] | None = None,
) -> IndexedSummary:
    """Tokenize files into `prefix.bin` and `prefix.idx`.

    The result does not depend on the number of workers. Nothing is left behind when it fails. Memory holds a few
    chunks of about a megabyte for each worker, and the largest document.

    Args:
        inputs: Files and folders. `.jsonl` and `.json` hold a JSON object a line, each a document; any other file is
            one document. `.gz` is unpacked. Empty documents are left out.
        tokenizer: Turns text into ids; for several workers picklable, its class in a module that can be imported.
        prefix: Path without suffix; its folder is made.
        workers: Processes that tokenize; with one it is this one.
        json_key: Where a JSON object has its text.
        append_eod: End each document with the tokenizer's `eod`.
        progress: Called with the stage, input bytes read, and their total.

    Raises:
        DataPathError: An input does not exist, or there is no file.
        BadDocumentError: A line or file cannot be read; named by file and line.
        CorpusError: No file has any text.
        WorkerError: A worker process was killed.
    """
    files = input_files(inputs)
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    encoder = ChunkEncoder(tokenizer=tokenizer, json_key=json_key, append_eod=append_eod)
    done, total = 0, sum(file.stat().st_size for file in files)
    with IndexedWriter(prefix, dtype=token_dtype(tokenizer.vocab_size)) as writer:
        for encoded in map_in_order(encoder, read_chunks(files), workers=workers):
            writer.add_documents(encoded.tokens, lengths=encoded.lengths)
            done += encoded.read_bytes
            if progress is not None:
                progress("tokenize", done, total)
        if not writer.summary.documents:
            raise CorpusError(
                f"{', '.join(map(str, inputs))}: no text in it ({len(files)} {'file' if len(files) == 1 else 'files'}, "
                f"{total} bytes), so that there is nothing to train on. Give files with text."
            )
    return writer.summary
