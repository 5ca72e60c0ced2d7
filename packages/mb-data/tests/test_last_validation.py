"""The sequences of the last validation before a checkpoint."""

import pytest

from mb_data.batch_iterators import BatchSettings
from mb_data.config import MockGPTDatasetConfig
from mb_data.errors import ValidationDataError
from mb_data.last_validation import last_validation
from mb_data.run_data import RunDatasets
from mb_data.validation_sets import NamedDataset

SETTINGS = BatchSettings(micro_batch_size=2, global_batch_size=4, eval_iters=3)


class Numbers:
    """Dataset whose samples are their indices."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"tokens": index}


def datasets(**sets):
    section = MockGPTDatasetConfig(
        seq_length=4,
        num_workers=0,
        dataloader_type="single",
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


def test_a_run_without_validation_data_is_rejected():
    with pytest.raises(ValidationDataError, match="has no validation data"):
        last_validation(datasets(), SETTINGS, consumed_samples=0)
