"""The sequences of the last validation before a checkpoint."""

from types import SimpleNamespace

import pytest
import torch

from mb_data.config import MockGPTDatasetConfig
from mb_data.errors import ValidationDataError
from mb_data.loading.batch_iterators import BatchSettings
from mb_data.loading.last_validation import last_validation
from mb_data.loading.validation_sets import NamedDataset
from mb_data.run_data import RunDatasets

SETTINGS = BatchSettings(micro_batch_size=2, global_batch_size=4, eval_iters=3)


class Numbers:
    """Dataset whose samples are their indices."""

    def __init__(self, size=100):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"tokens": index, "loss_mask": torch.ones(1)}


class Documents(Numbers):
    """The same, as the parts of documents: sample n is one label of a document of n + 5 tokens."""

    config = SimpleNamespace(add_extra_token_to_sequence=True)
    dataset_path = "documents"

    def __init__(self, size):
        super().__init__(size)
        self.shuffle_index, self.document_index = range(size), range(size + 1)
        self.sample_index = [(number, 0) for number in range(size + 1)]
        self.dataset = SimpleNamespace(sequence_lengths=[number + 5 for number in range(size + 1)])


def datasets(dataloader_type="single", **sets):
    section = MockGPTDatasetConfig(
        seq_length=4,
        num_workers=0,
        dataloader_type=dataloader_type,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    return RunDatasets(section=section, train=None, test=None, **{"valid": None, **sets})


def read(found):
    iterator = iter(found.data())
    return [int(token) for _ in range(found.microbatches) for token in next(iterator)["tokens"]]


def test_the_batches_of_a_stream_end_where_the_run_had_read_to():
    (found,) = last_validation(datasets(valid=Numbers()), SETTINGS, consumed_samples=24)
    assert read(found) == list(range(12, 24))
    (first,) = last_validation(datasets(valid=Numbers()), SETTINGS, consumed_samples=0)
    assert read(first) == list(range(12))
    assert first.document_lengths(0) is None


def test_complete_sets_are_read_from_their_start():
    sets = [NamedDataset(name="a", dataset=Numbers()), NamedDataset(name="b", dataset=Numbers())]
    found = last_validation(
        datasets(valid_sets=sets, complete_validation=True), SETTINGS, consumed_samples=500
    )
    assert [(each.name, read(each)[:3], each.microbatches) for each in found] == [
        ("a", [0, 1, 2], 50),
        ("b", [0, 1, 2], 50),
    ]


@pytest.mark.parametrize("size", [1, 3, 11, 12])
@pytest.mark.parametrize("loader", ["single", "cyclic", "batch"])
def test_each_sequence_of_a_complete_set_counts_once_also_beyond_the_last_batch_of_training(size, loader):
    sets = [NamedDataset(name="", dataset=Numbers(size))]
    (found,) = last_validation(
        datasets(loader, valid_sets=sets, complete_validation=True), SETTINGS, consumed_samples=0
    )
    iterator = iter(found.data())
    read = [next(iterator) for _ in range(found.microbatches)]
    counts = [
        token
        for batch in read
        for token, mask in zip(batch["tokens"].tolist(), batch["loss_mask"], strict=True)
        if mask
    ]
    assert sorted(counts) == list(range(size))


@pytest.mark.parametrize("loader", ["single", "cyclic", "batch"])
def test_the_documents_are_those_of_the_sequences_that_are_read(loader):
    sets = [NamedDataset(name="", dataset=Documents(7))]
    (found,) = last_validation(
        datasets(loader, valid_sets=sets, complete_validation=True), SETTINGS, consumed_samples=0
    )
    tokens = read(found)
    lengths = [found.document_lengths(number)[0] for number in range(7)]
    assert lengths == [token + 5 for token in tokens[:7]]
    assert found.document_lengths(7) is not None, "what fills the last microbatch"


def test_a_run_without_validation_data_is_rejected():
    with pytest.raises(ValidationDataError, match="has no validation data"):
        last_validation(datasets(), SETTINGS, consumed_samples=0)
