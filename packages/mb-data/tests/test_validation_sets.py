"""Validation sets: identical on all ranks, whatever each rank reads. `gather` simulates the other ranks."""

from dataclasses import dataclass
from typing import Any

import pytest

from mb_data import (
    ByteTokenizer,
    DatasetBuildContext,
    DatasetProvider,
    GPTDatasetConfig,
    NotEnoughSamplesError,
    ValidationDataError,
    ValidationSetOptions,
)
from mb_data.validation_sets import NamedDataset, build_validation_sets, stream_batches, validation_batches

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


def iterate(dataset, *, consumed_samples):
    return consumed_samples


@pytest.mark.parametrize("dataset", [Endless(), None])
def test_the_length_of_streams_is_not_read(dataset):
    sets = validation_batches(
        [NamedDataset(name="a", dataset=dataset), NamedDataset(name="b", dataset=None)],
        iterate=iterate,
        batch_samples=4,
        consumed_samples=24,
        eval_iters=3,
        gather=with_ranks([0, None]),
    )
    assert [(each.name, each.batches, each.data()) for each in sets] == [("a", 3, 24)]


def test_a_complete_set_starts_again_in_each_evaluation():
    complete = {"iterate": iterate, "batch_samples": 4, "consumed_samples": 24, "eval_iters": None}
    (found,) = validation_batches([NamedDataset(name="a", dataset=range(11))], **complete)
    assert (found.batches, found.data(), found.data()) == (2, 0, 0)
    with pytest.raises(NotEnoughSamplesError, match="the set a has 3 sequences, fewer than one batch of 4"):
        validation_batches([NamedDataset(name="a", dataset=range(3))], **complete)


def test_a_stream_is_one_set_without_a_name():
    (found,) = stream_batches(stream := iter(()), batches=3)
    assert (found.name, found.batches, found.data() is stream) == ("", 3, True)
