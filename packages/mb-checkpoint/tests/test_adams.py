"""A run may continue with another implementation of Adam, or on another machine, as if nothing had changed."""

from functools import cache
from itertools import combinations

import pytest
import rank_work

FORMS = {"dp_reshardable": {}, "fully_reshardable": {"dist_ckpt_optim_fully_reshardable": True}}
BOTH = {"dist_opt": True, "bf16": True}
"""What the precision-aware optimizer and that on the host need."""
SHAPES = {"float32": {}, "bf16": {"bf16": True}, "distributed": {"dist_opt": True}}
OTHERS = ("apex", "te")
KEPT = ("te precision-aware", "te remainders", "hybrid")
PAIRS = [
    *((shape, "dp_reshardable", "torch", other) for shape in SHAPES for other in OTHERS),
    *(
        ("distributed bf16", form, one, other)
        for form in FORMS
        for one, other in combinations(("torch", *KEPT), 2)
    ),
    *(("distributed bf16", form, one, one) for form in FORMS for one in KEPT[1:]),
]
"""Each run changes from one to the other and back."""


def further(shape, form, one, other):
    """Return whether a pair runs in the matrix only: both are changed to and from torch's, in a form of its own."""
    return form == "fully_reshardable" and "torch" not in (one, other) and one != other


@pytest.fixture(scope="module")
def uninterrupted(one_rank):
    """Return a function: shape -> losses and state of a run that changes nothing."""
    return cache(lambda **shape: one_rank.run(rank_work.train_uninterrupted, shape, 6)[0])


@pytest.mark.parametrize(
    ("shape", "form", "one", "other"),
    [pytest.param(*pair, marks=[pytest.mark.matrix] * further(*pair)) for pair in PAIRS],
)
def test_a_run_that_changes_its_adam_equals_one_that_does_not(
    shape, form, one, other, one_rank, uninterrupted, tmp_path
):
    shape, section = (
        (SHAPES | {"distributed bf16": BOTH})[shape],
        {"load": str(tmp_path), "save": str(tmp_path)},
    )
    section |= FORMS[form]
    losses, unmoved = uninterrupted(**shape, adam=one)
    ((first, _),) = one_rank.run(rank_work.first_part, {**shape, "adam": one}, section, 2)
    ((second, _, _),) = one_rank.run(rank_work.moved_part, {**shape, "adam": other}, section, 2)
    ((third, moved, _),) = one_rank.run(rank_work.moved_part, {**shape, "adam": one}, section, 2)
    assert first + second + third == losses
    assert moved["weights"] == unmoved["weights"]


SHARDED = [
    *(({}, *pair) for pair in (("torch", "te"), ("te", "torch"))),
    *(({"bf16": True}, "te", other) for other in ("torch", *KEPT)),
    *(({"bf16": True}, "torch", other) for other in ("te", "hybrid")),
]


@pytest.mark.parametrize(("precision", "one", "other"), SHARDED)
def test_a_run_that_changes_its_adam_and_shards_it_equals_one_that_does_not(
    precision, one, other, one_rank, uninterrupted, tmp_path
):
    section = {"load": str(tmp_path), "save": str(tmp_path), **FORMS["fully_reshardable"]}
    shape, sharded = {**precision, "adam": one}, {**precision, "adam": other, "dist_opt": True}
    losses, unmoved = uninterrupted(**shape)
    ((first, _),) = one_rank.run(rank_work.first_part, shape, section, 2)
    ((second, _, _),) = one_rank.run(rank_work.moved_part, sharded, section, 2)
    ((third, moved, _),) = one_rank.run(rank_work.moved_part, shape, section, 2)
    assert first + second + third == losses
    assert moved["weights"] == unmoved["weights"]
