"""Validation sets: identical on all ranks, whatever each rank reads. `gather` simulates the other ranks."""

import pytest

from mb_config import ValidationConfig
from mb_data import DrawnShapesConfig
from mb_loop import ValidationSetError
from mb_trainer.validation import NamedDataset, as_loop_sets, build_sets

SECTION = DrawnShapesConfig(seq_length=32)


def beside(*others):
    """Return a gather function in which the other ranks contribute these values."""
    return lambda mine: [mine, *others]


def names_of(found, gather, **validation):
    wanted = ValidationConfig(multiple_validation_sets=True, **validation)
    return [each.name for each in build_sets(SECTION, wanted, build=lambda section: found, gather=gather)]


def test_a_rank_without_data_has_as_many_sets_as_the_others():
    assert names_of(None, beside(2)) == names_of(["a", "b"], beside(None)) == ["0", "1"]
    assert names_of(None, beside(2), validation_set_names=["x", "y"]) == ["x", "y"]
    assert names_of(None, beside(None)) == [""]


@pytest.mark.parametrize(
    ("found", "other", "message"),
    [
        (None, "Subset", "DrawnShapesConfig returned one Subset as its validation data, and only a list"),
        (("a", "b"), None, "DrawnShapesConfig returned one tuple as its validation data, and only a list"),
        (["a"], "Subset", r"another number on others \(by rank: \[1, 'Subset'\]\)"),
        (["a"], 2, r"another number on others \(by rank: \[1, 2\]\)"),
        (None, 3, "names 2 sets"),
    ],
)
def test_sets_that_cannot_be_told_apart_are_refused_on_all_ranks(found, other, message):
    with pytest.raises(ValidationSetError, match=message):
        names_of(found, beside(other), validation_set_names=["x", "y"])


class Endless:
    """User-defined dataset without a length."""


@pytest.mark.parametrize("dataset", [Endless(), None])
def test_only_whole_sets_are_asked_for_their_length(dataset):
    sets = as_loop_sets(
        [NamedDataset(name="a", dataset=dataset), NamedDataset(name="b", dataset=None)],
        batches=lambda dataset, *, consumed: consumed,
        batch_samples=4,
        consumed_samples=24,
        eval_iters=3,
        gather=beside([0, None]),
    )
    assert [(each.name, each.batches, each.data()) for each in sets] == [("a", 3, 24)]
