"""Custom data loader with a position: the main job stops and resumes."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from runs import losses

from mb_checkpoint.errors import DataloaderStateError
from mb_trainer import pretrain
from mb_trainer.config import DatasetProvider
from mb_trainer.requests import read_request


class Stream:
    """Endless batches of two sequences, each made from its number."""

    def __init__(self, read: list[int]) -> None:
        self.number, self.read = 0, read

    def save_state(self):
        return {"number": self.number}

    def restore_state(self, state):
        self.number = state["number"]


class Batches:
    """Iterates over a stream; the trainer finds the position under `iterable`."""

    def __init__(self, stream: Stream) -> None:
        self.iterable = stream

    def __iter__(self):
        return self

    def __next__(self):
        stream = self.iterable
        stream.read.append(stream.number)
        random = torch.Generator().manual_seed(stream.number)
        stream.number += 1
        tokens = torch.randint(0, 200, (2, 33), generator=random)
        return {
            "tokens": tokens[:, :-1],
            "labels": tokens[:, 1:],
            "loss_mask": torch.ones(2, 32),
            "position_ids": torch.arange(32).repeat(2, 1),
        }


@dataclass(kw_only=True)
class External(DatasetProvider):
    """Section of a dataset with such a loader."""

    seq_length: int = 32
    dataloader_type: Any = "external"
    keeps_position: bool = True

    def build_datasets(self, context):
        """Return the training data."""
        found = Batches(Stream(READ))
        return (found if self.keeps_position else map(dict, found)), None, None


READ: list[int] = []
"""Numbers of the batches that the current run has read."""


def train(overrides, out, *words, **section):
    """Train four steps of two microbatches; return the numbers of the batches that were read."""
    kept = [word for word in overrides if not word.startswith(("dataset.", "validation."))]
    request = read_request(
        [*kept, "tokenizer.tokenizer_type=ByteTokenizer", "train.train_iters=4", "train.global_batch_size=4",
         "train.micro_batch_size=2", "validation.eval_interval=null", *words]
    )  # fmt: skip
    request.config.dataset = External(**section)
    READ.clear()
    pretrain(request.config, out=out, provenance=request.provenance, resume_with_changes=True, environment={})
    return list(READ)


def test_a_resumed_run_continues_at_the_position_of_the_loader(overrides, tmp_path):
    positions = str(tmp_path / "positions")
    assert train(overrides, tmp_path / "straight") == [0, 1, 2, 3, 4, 5, 6, 7]
    read = [
        train(overrides, tmp_path / "run", "train.exit_interval=3", dataloader_save=positions),
        train(overrides, tmp_path / "run", "train.exit_interval=null"),
    ]
    assert read == [[0, 1, 2, 3, 4, 5], [6, 7]]
    assert losses(tmp_path / "run") == losses(tmp_path / "straight")
    stored = [path.relative_to(tmp_path / "positions") for path in (tmp_path / "positions").rglob("*.pt")]
    assert [str(path) for path in stored] == ["iter_0000003/train_dataloader_dprank000.pt"]


def test_a_loader_without_a_position_restarts_and_that_is_reported(overrides, tmp_path, capsys):
    words = ["train.exit_interval=3"]
    assert train(overrides, tmp_path / "run", *words, keeps_position=False) == [0, 1, 2, 3, 4, 5]
    assert (
        "so checkpoints hold no position of the data, and a resumed run reads it " in capsys.readouterr().out
    )
    with pytest.raises(DataloaderStateError, match=r"dataset\.dataloader_load=.*so there is no position"):
        train(overrides, tmp_path / "run", keeps_position=False, dataloader_load=str(tmp_path))
