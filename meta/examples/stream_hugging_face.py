"""Pretraining on a Hugging Face dataset that is streamed: nothing is tokenized in advance, and a resume is exact.

    mb pretrain stream_hugging_face.py:build dataset.data_files=text.jsonl --out runs/stream

`dataset.path` and `dataset.data_files` are the arguments of `datasets.load_dataset`: a local builder such as `json` or
`parquet`, or the folder of a dataset. Documents are read in their order; each data-parallel rank reads its own part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mb_trainer import RECIPES
from mb_trainer.config import DatasetProvider, TokenizerConfig


@dataclass(kw_only=True)
class StreamConfig(DatasetProvider):
    """Dataset section: documents of a stream, one after the other, cut into sequences."""

    path: str = "json"
    """Builder or folder of the dataset."""
    data_files: str | None = None
    """Files of the builder."""
    text_key: str = "text"
    """Column of the text."""
    seq_length: int
    micro_batch_size: int
    """Sequences of a batch; `train.micro_batch_size`."""
    dataloader_type: Any = "external"

    def build_datasets(self, context: Any) -> tuple[Any, None, None]:
        """Return the training batches of this rank."""
        group = context.pg_collection.dp
        stream = TokenStream(self, context.tokenizer, rank=group.rank(), ranks=group.size())
        return Batches(stream, size=self.micro_batch_size), None, None


class TokenStream:
    """Endless stream of sequences. Its position: that of the dataset, and the tokens of a document that are left."""

    def __init__(self, config: StreamConfig, tokenizer: Any, *, rank: int, ranks: int) -> None:
        self._config, self._tokenizer, self._part = config, tokenizer, (rank, ranks)
        self._tokens: list[int] = []
        self._open(None)

    def _open(self, position: Any) -> None:
        """Open the dataset at a position; None: at its beginning."""
        from datasets import load_dataset
        from datasets.distributed import split_dataset_by_node

        config = self._config
        rank, ranks = self._part
        documents = load_dataset(config.path, data_files=config.data_files, split="train", streaming=True)
        self._documents = split_dataset_by_node(documents, rank=rank, world_size=ranks)
        if position is not None:
            self._documents.load_state_dict(position)
        self._iterator = iter(self._documents)

    def sequence(self) -> list[int]:
        """Return the next tokens, one more than the length of a sequence."""
        length = self._config.seq_length + 1
        while len(self._tokens) < length:
            document = next(self._iterator, None)
            if document is None:  # the next epoch
                self._open(None)
                continue
            self._tokens += [*self._tokenizer.encode(document[self._config.text_key]), self._tokenizer.eod]
        found, self._tokens = self._tokens[:length], self._tokens[length - 1 :]
        return found

    def save_state(self) -> dict[str, Any]:
        """Return the position. Called by a checkpoint."""
        return {"documents": self._documents.state_dict(), "tokens": self._tokens}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continue at a position. Called by a resumed run."""
        self._tokens = [*state["tokens"]]
        self._open(state["documents"])


class Batches:
    """Iterator over complete batches; the trainer finds the position under `iterable`."""

    def __init__(self, stream: TokenStream, *, size: int) -> None:
        self.iterable, self._size = stream, size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        import torch

        tokens = torch.tensor([self.iterable.sequence() for _ in range(self._size)])
        rows, length = self._size, tokens.size(1) - 1
        return {
            "tokens": tokens[:, :-1],
            "labels": tokens[:, 1:],
            "loss_mask": torch.ones(rows, length),
            "position_ids": torch.arange(length).repeat(rows, 1),
        }


def build() -> Any:
    """Return gpt_tiny on a stream of bytes."""
    config = RECIPES["gpt_tiny"].build()
    config.tokenizer = TokenizerConfig(tokenizer_type="ByteTokenizer")
    config.validation.eval_interval = None
    config.dataset = StreamConfig(
        seq_length=config.model.seq_length, micro_batch_size=config.train.micro_batch_size, num_workers=0
    )
    return config
