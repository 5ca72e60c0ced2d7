"""Batches of a streamed Hugging Face dataset. Imports torch, and datasets when a stream is opened.

Shapes: B sequences of a microbatch, S tokens of a sequence.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import torch

from mb_data.dataset_provider import DatasetBuildContext
from mb_data.errors import DataPathError
from mb_data.libraries import load_dataset
from mb_data.streaming.config import HuggingFaceStreamConfig
from mb_data.tokenizers.base import end_document


def build_stream(
    config: HuggingFaceStreamConfig, context: DatasetBuildContext
) -> tuple["StreamBatches | None", None, None]:
    """Return the training batches of this data-parallel rank; None on a rank that reads no data.

    Raises:
        DataPathError: The dataset cannot be opened.
        FormatLibraryError: The library datasets is not installed.
    """
    if not context.reads_data:
        return None, None, None
    group = context.pg_collection.dp if context.pg_collection is not None else None
    rank, ranks = (0, 1) if group is None else (group.rank(), group.size())
    stream = TokenStream(config, context.tokenizer, rank=rank, ranks=ranks)
    return StreamBatches(stream, size=context.micro_batch_size), None, None


class TokenStream:
    """Endless sequences of the tokens of one rank's documents, each document with an end-of-document token."""

    def __init__(self, config: HuggingFaceStreamConfig, tokenizer: Any, *, rank: int, ranks: int) -> None:
        self._config, self._tokenizer, self._rank, self._ranks = config, tokenizer, rank, ranks
        self._tokens: list[int] = []
        """Tokens that were read and belong to the next sequences."""
        self._open(None)

    def _open(self, position: Mapping[str, Any] | None) -> None:
        """Open the dataset at a position; None: at its beginning."""
        config = self._config
        documents = load_dataset(
            config.hf_dataset,
            config.hf_subset,
            advice="Correct hf_dataset, hf_subset, hf_data_files or hf_split.",
            data_files=config.hf_data_files,
            split=config.hf_split,
            streaming=True,
        )
        split_by_rank = import_module("datasets.distributed").split_dataset_by_node
        self._documents = split_by_rank(documents, rank=self._rank, world_size=self._ranks)
        if position is not None:
            self._documents.load_state_dict(position)
        self._iterator = iter(self._documents)
        self._is_empty = position is None

    def sequence(self) -> list[int]:
        """Return the next S + 1 tokens; the last one is also the first of the next sequence.

        Raises:
            DataPathError: The rank has no document, or a document has no text.
        """
        length = self._config.seq_length + 1
        while len(self._tokens) < length:
            document = next(self._iterator, None)
            if document is None:
                if self._is_empty:
                    raise DataPathError(
                        f"dataset.hf_dataset: {self._config.hf_dataset!r} has no document for rank {self._rank} of "
                        f"{self._ranks}. Use fewer data-parallel ranks, or more documents."
                    )
                self._open(None)  # the next epoch
                continue
            self._is_empty = False
            self._tokens += end_document(self._tokenizer.encode(self._text(document)), self._tokenizer.eod)
        sequence, self._tokens = self._tokens[:length], self._tokens[length - 1 :]
        return sequence

    def _text(self, document: Mapping[str, Any]) -> str:
        text = document.get(self._config.text_key)
        if not isinstance(text, str):
            raise DataPathError(
                f"dataset.text_key: a document has no text in column {self._config.text_key!r} (columns: "
                f"{', '.join(map(str, document))}). Set the column of the text."
            )
        return text

    def save_state(self) -> dict[str, Any]:
        """Return the position. Called by a checkpoint."""
        return {"documents": self._documents.state_dict(), "tokens": self._tokens}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Continue at a position. Called by a resumed run."""
        self._tokens = [*state["tokens"]]
        self._open(state["documents"])


class StreamBatches:
    """Iterator over complete batches; a checkpoint stores the position of its `iterable`."""

    def __init__(self, stream: TokenStream, *, size: int) -> None:
        self.iterable, self._size = stream, size

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        """Return the next batch: tokens, labels, loss_mask and position_ids, all (B, S)."""
        tokens = torch.tensor([self.iterable.sequence() for _ in range(self._size)])
        length = tokens.size(1) - 1
        return {
            "tokens": tokens[:, :-1],
            "labels": tokens[:, 1:],
            "loss_mask": torch.ones(self._size, length),
            "position_ids": torch.arange(length).repeat(self._size, 1),
        }
