import pytest

from mb_data import SampleCounts, dataset_sample_counts

SIZES = {"global_batch_size": 8, "eval_interval": 30, "eval_iters": 2}


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, SampleCounts(train=800, valid=4 * 2 * 8, test=2 * 8)),
        ({"eval_global_batch_size": 4}, SampleCounts(train=800, valid=4 * 2 * 4, test=2 * 4)),
        ({"eval_interval": None}, SampleCounts(train=800, valid=0, test=16)),
        ({"eval_iters": 0}, SampleCounts(train=800, valid=0, test=0)),
        ({"train_samples": 777}, SampleCounts(train=777, valid=64, test=16)),
        ({"validation_sets": True}, SampleCounts(train=800, valid=64, test=16)),
        ({"validation_sets": True, "eval_iters": None}, SampleCounts(train=800, valid=1, test=0)),
        (
            {"validation_sets": True, "eval_interval": None, "eval_iters": 0},
            SampleCounts(train=800, valid=0, test=0),
        ),
    ],
)
def test_counts(changes, counts):
    assert dataset_sample_counts(100, **(SIZES | changes)) == counts
