"""Batches that grow; the right sizes are the formula in the description of `--rampup-batch-size`."""

import pytest

from mb_guard.faults.batch_sizes import steps_of_ramp

CASE = "case_batch_sizes.py"
IGNORED, CONSTANT = "rampup-batch-size-ignored", "changing-batch-counted-as-constant"


def documented(consumed, ramp, batch):
    """Start at `first`, and grow by `increment` in each of n intervals of S / n sequences."""
    first, increment, sequences = ramp
    if consumed >= sequences:
        return batch
    return first + int(consumed / (sequences / ((batch - first) // increment))) * increment


def documented_steps(ramp, batch, samples):
    sizes = []
    while sum(sizes) + (size := documented(sum(sizes), ramp, batch)) <= samples:
        sizes.append(size)
    return sizes


@pytest.mark.parametrize("ramp", [[4, 4, 24], [2, 2, 50], [8, 8, 33], [12, 2, 7], [4, 12, 5]])
def test_the_batch_grows_by_the_documented_formula(ramp, run_case):
    flags = f"--global-batch-size 16 --train-samples 90 --rampup-batch-size {' '.join(map(str, ramp))}"
    [(steps, _)] = run_case(CASE, "steps", None, flags)
    assert [size for size, _ in steps] == documented_steps(ramp, 16, 90)
    [(steps, _)] = run_case(CASE, "steps", IGNORED, flags)
    assert [size for size, _ in steps] == [16] * 5


@pytest.mark.parametrize("again", [False, True])
def test_the_calculator_grows(again, run_case):
    [sizes] = run_case(CASE, "calculated", again, [4, 6, 30], {"global_batch_size": 22})
    assert sizes == [documented(consumed, [4, 6, 30], 22) for consumed in range(60)]


def test_sizes_are_rounded_down_for_the_replicas(run_case):
    settings = {"global_batch_size": 22, "data_parallel_size": 2, "decrease_batch_size_if_needed": True}
    [sizes] = run_case(CASE, "calculated", False, [4, 6, 30], settings)
    assert sizes == [documented(consumed, [4, 6, 30], 22) // 4 * 4 for consumed in range(60)]


@pytest.mark.parametrize("ramp", [[5, 4, 24], [0, 4, 24], [4, 0, 24], [32, 4, 24], [4, 4, -1]])
def test_a_ramp_that_does_not_reach_the_batch_is_rejected(ramp):
    with pytest.raises(
        ValueError, match=r"rampup_batch_size: \d+ does not grow to global_batch_size .* Choose"
    ):
        steps_of_ramp(ramp, global_batch_size=16, multiple_of=1, unit=1)


def test_a_first_batch_that_rounding_would_empty_is_rejected():
    with pytest.raises(ValueError, match=r"first batch of 4 is smaller than .* \(8\)"):
        steps_of_ramp([4, 4, 24], global_batch_size=16, multiple_of=8, unit=1)
    assert steps_of_ramp([8, 4, 24], global_batch_size=16, multiple_of=8, unit=1) == "0:8 12:8 24:16"


def test_stages_that_begin_together_are_one():
    assert steps_of_ramp([4, 4, 0], global_batch_size=16, multiple_of=1, unit=1) == "0:16"


STEPPED = "--step-batch-size-schedule 0:4,384:8"
"""8 from 384 tokens on: 12 sequences."""


def test_a_schedule_in_iterations_ends_with_the_run(run_case):
    flags = f"{STEPPED} --train-iters 10 --lr-warmup-iters 2"
    [(steps, data)] = run_case(CASE, "steps", None, flags)
    consumed = [4, 8, 12, 20, 28, 36, 44, 52, 60, 68]
    right = [done / 8 if done <= 8 else (68 - done) / (68 - 8) for done in consumed]
    assert [rate for _, rate in steps] == pytest.approx(right, abs=1e-9)
    assert data == 68
    [(steps, data)] = run_case(CASE, "steps", CONSTANT, flags)
    assert [rate for _, rate in steps[2:]] == [0] * 8
    assert data == 10


def test_the_decay_of_wsd_has_its_iterations(run_case):
    flags = (
        f"{STEPPED} --train-iters 6 --lr-decay-style WSD --lr-wsd-decay-iters 3 --lr-wsd-decay-style linear"
    )
    [(steps, _)] = run_case(CASE, "steps", None, flags)
    assert [rate for _, rate in steps] == pytest.approx([1, 1, 1, 2 / 3, 1 / 3, 0], abs=1e-9)


def test_samples_end_with_a_complete_batch(run_case):
    flags = f"{STEPPED} --train-samples 40"
    [(steps, _)] = run_case(CASE, "steps", None, flags)
    assert [size for size, _ in steps] == [4, 4, 4, 8, 8, 8]
    [(steps, _)] = run_case(CASE, "steps", CONSTANT, flags)
    assert sum(size for size, _ in steps) == 44


def test_a_constant_batch_counts_as_before(run_case):
    for flags in ("--global-batch-size 4 --train-iters 5", "--global-batch-size 4 --train-samples 22"):
        assert run_case(CASE, "steps", None, flags) == run_case(CASE, "steps", CONSTANT, flags)
