"""Faults of datasets: each is there without its correction, and absent with it."""

import pytest

LENGTHS, SEQ_LENGTH = [40, 100, 7, 58, 90, 64, 31], 64


@pytest.mark.parametrize("fault", [None, "cached-loss-mask"])
def test_padding_of_a_partial_sequence_masks_no_other(fault, run_case):
    (found,) = run_case("case_datasets.py", "tokens_in_the_loss", fault, LENGTHS, SEQ_LENGTH)
    complete, rest = divmod(sum(LENGTHS) - 1, SEQ_LENGTH)  # the first token is predicted by none
    assert sorted(found[0]) == sorted([SEQ_LENGTH] * complete + [rest])
    wrong = [counts for counts in found[1:] if counts != found[0]]
    assert len(wrong) == (0 if fault is None else 1), "with the fault, if the partial sequence is the first"


def test_ranks_read_the_same_epoch(run_case):
    samples, size, ranks = 10, 2, 3

    def read(fault, steps, consumed):
        return run_case("case_datasets.py", "cyclic_batches", fault, samples, size, ranks, steps, consumed)[0]

    right = read(None, 8, 0)
    assert [len(set(batch)) for batch in right] == [size * ranks] * 8, "an epoch is one permutation"
    assert read(None, 5, 3 * size * ranks) == right[3:], (
        "a resumed run reads what the uninterrupted one reads"
    )
    wrong = read("cyclic-epochs-of-ranks", 8, 0)
    assert any(len(set(batch)) < size * ranks for batch in wrong)
