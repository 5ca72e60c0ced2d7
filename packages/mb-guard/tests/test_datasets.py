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
