"""Validation sets: identical on all ranks, whatever each rank reads. `gather` simulates the other ranks."""

import pickle
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Subset

from mb_data import (
    ByteTokenizer,
    DatasetBuildContext,
    DatasetProvider,
    FinetuningDatasetConfig,
    GPTDatasetConfig,
    NotEnoughSamplesError,
    ValidationDataError,
    ValidationSetOptions,
)
from mb_data.loading.batch_iterators import BatchSettings, DataRanks
from mb_data.loading.validation_sets import (
    NamedDataset,
    ValidationBatches,
    WholeBatches,
    build_validation_sets,
    validation_batches,
)
from mb_data.run_data import RunDatasets

CONTEXT = DatasetBuildContext(train_samples=8, valid_samples=4, test_samples=2, tokenizer=ByteTokenizer())


@dataclass(kw_only=True)
class Fixed(DatasetProvider):
    """Section that returns this validation data."""

    found: Any = None

    def build_datasets(self, context):
        assert (context.train_samples, context.valid_samples, context.test_samples) == (0, 4, 0)
        return None, self.found, None


def with_ranks(*others):
    """Return a gather function in which the other ranks contribute these values."""
    return lambda mine: [mine, *others]


def names_of(found, gather, **options):
    wanted = ValidationSetOptions(several=True, **options)
    return [each.name for each in build_validation_sets(Fixed(found=found), CONTEXT, wanted, gather=gather)]


def test_a_rank_without_data_has_as_many_sets_as_the_others():
    assert names_of(None, with_ranks(2)) == names_of(["a", "b"], with_ranks(None)) == ["0", "1"]
    assert names_of(None, with_ranks(2), names=["x", "y"]) == ["x", "y"]
    assert names_of(None, with_ranks(None)) == [""]


@pytest.mark.parametrize(
    ("found", "other", "message"),
    [
        (None, "Subset", "Fixed returned one Subset as its validation data, and only a list"),
        (("a", "b"), None, "Fixed returned one tuple as its validation data, and only a list"),
        (["a"], "Subset", r"another number on others \(by rank: \[1, 'Subset'\]\)"),
        (["a"], 2, r"another number on others \(by rank: \[1, 2\]\)"),
        (None, 3, "names 2 sets"),
    ],
)
def test_sets_that_cannot_be_distinguished_are_rejected_on_all_ranks(found, other, message):
    with pytest.raises(ValidationDataError, match=message):
        names_of(found, with_ranks(other), names=["x", "y"])


def test_without_evaluation_there_are_no_sets():
    context = DatasetBuildContext(train_samples=8, valid_samples=0, test_samples=0)
    assert build_validation_sets(Fixed(), context, ValidationSetOptions(complete=True)) == []


@pytest.mark.parametrize("per_split", [False, True])
def test_each_prefix_is_a_set(per_split, write_pair):
    pytest.importorskip("megatron.core")
    books, web = write_pair("books", documents=40), write_pair("web", documents=80, first=3)
    chosen = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False)
    blend = ([books, web], None)
    data = {"blend_per_split": [None, blend, None]} if per_split else {"blend": blend, "split": "50,50,0"}
    section = GPTDatasetConfig(seq_length=10, **data, **chosen)
    section.finalize()
    sets = build_validation_sets(section, CONTEXT, ValidationSetOptions(complete=True, several=True))
    assert [each.name for each in sets] == ["books", "web"]
    half = 1 if per_split else 2
    assert [len(each.dataset) for each in sets] == [
        pytest.approx(44 // half, abs=1),
        pytest.approx(88 // half, abs=1),
    ]
    assert (section.full_validation, section.blend) == (None, None if per_split else blend)


class Endless:
    """User-defined dataset without a length."""


def iterate(dataset, *, consumed_samples, repeats=False):
    return consumed_samples


@pytest.mark.parametrize("dataset", [Endless(), None])
def test_the_length_of_streams_is_not_read(dataset):
    sets = validation_batches(
        [NamedDataset(name="a", dataset=dataset), NamedDataset(name="b", dataset=None)],
        iterate=iterate,
        batch_samples=4,
        consumed_samples=24,
        eval_iters=3,
        gather=with_ranks([(0, True), None]),
    )
    assert [(each.name, each.batches, each.data()) for each in sets] == [("a", 3, 24)]


def test_a_complete_set_starts_again_in_each_evaluation():
    complete = {"iterate": iterate, "batch_samples": 4, "consumed_samples": 24, "eval_iters": None}
    (found,) = validation_batches([NamedDataset(name="a", dataset=range(12))], **complete)
    assert (found.batches, found.data(), found.data()) == (3, 0, 0)


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (range(0), NotEnoughSamplesError, "the set a has no sequence"),
        (
            range(11),
            ValidationDataError,
            "11 sequences, which is not a multiple of the batch of 4, and .* no loss_mask",
        ),
    ],
)
def test_a_set_that_cannot_be_read_completely_is_rejected(dataset, error, message):
    with pytest.raises(error, match=message):
        validation_batches(
            [NamedDataset(name="a", dataset=dataset)],
            iterate=iterate,
            batch_samples=4,
            consumed_samples=0,
            eval_iters=None,
        )


class Masked:
    """Samples of these lengths: their index at each position, with every other sample out of the loss."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        tokens = torch.full((self.lengths[index],), index)
        return {"tokens": tokens, "loss_mask": torch.full_like(tokens, index % 2, dtype=torch.float32)}


class MaskedOfManyLengths(Masked):
    """The same, with the methods of a dataset whose samples differ in length."""

    def length(self, index):
        return self.lengths[index]

    def collate(self, samples):
        return {
            name: pad_sequence([each[name] for each in samples], batch_first=True)
            for name in ("tokens", "loss_mask")
        }


def counted(batches):
    """Return how many tokens of each sample are in the loss."""
    return Counter(
        token
        for batch in batches
        for token, counts in zip(
            batch["tokens"].flatten().tolist(), batch["loss_mask"].flatten(), strict=True
        )
        if counts
    )


def test_a_complete_set_can_be_sent_to_workers_that_are_not_forked():
    again = pickle.loads(pickle.dumps(WholeBatches(Subset(range(5), [0, 1, 2]), 2)))
    assert (len(again), again[2], hasattr(again, "length")) == (4, 2, False)


@pytest.mark.parametrize("loader", ["single", "cyclic", "batch"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Masked, MaskedOfManyLengths])
def test_complete_sets_count_each_sample_once_on_any_number_of_ranks_and_workers(loader, workers, kind):
    rng = random.Random(f"{loader} {workers} {kind}")
    for ranks in (1, 2, 3):
        micro, size = rng.randint(1, 3), rng.randint(1, 30)
        batch = micro * ranks * rng.randint(1, 4)
        dataset = kind([5] * size if kind is Masked else [rng.randint(1, 6) for _ in range(size)])
        section = FinetuningDatasetConfig(
            seq_length=8, dataset_root="unused", dataloader_type=loader, num_workers=workers
        )
        datasets = RunDatasets(
            section=section,
            train=None,
            valid=None,
            test=None,
            valid_sets=[NamedDataset(name="", dataset=dataset)],
            complete_validation=True,
        )
        settings = BatchSettings(micro_batch_size=micro, global_batch_size=batch)
        read = []
        for rank in range(ranks):
            loaders = datasets.loaders(
                settings, ranks=DataRanks(data_parallel_rank=rank, data_parallel_size=ranks)
            )
            (found,) = loaders.iterators().valid
            iterator = found.data()
            read += [next(iterator) for _ in range(found.batches * batch // (micro * ranks))]
            loaders.batches.close()
        expected = {index: length for index, length in enumerate(dataset.lengths) if index % 2}
        assert counted(read) == expected, (ranks, micro, batch, size)


def test_a_stream_is_one_set_without_a_name():
    found = ValidationBatches.of_stream(stream := iter(()), batches=3)
    assert (found.name, found.batches, found.data() is stream) == ("", 3, True)
