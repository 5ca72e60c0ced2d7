"""One GPT in many parallel layouts: the losses of every step agree with one process."""

from pathlib import Path

import pytest
from host_layouts import Layout

from mb_host import function_in

GPT = Path(__file__).parent / "host_gpt.py"
STEPS = 8
TOLERANCE = 1e-5
MOE = {"experts": 4}
TWO_RANKS = {
    "dp2": Layout(),
    "tp2": Layout(tp=2),
    "dp2-distributed-optimizer-overlap": Layout(distributed_optimizer=True, overlap=True),
    "tp2-sp": Layout(tp=2, sequence_parallel=True),
    "pp2": Layout(pp=2),
    "pp2-vp2": Layout(pp=2, vp=2),
    "cp2": Layout(cp=2),
    "ep2": Layout(ep=2, **MOE),
}
FOUR_RANKS = {
    "tp2-pp2": Layout(tp=2, pp=2),
    "tp2-dp2": Layout(tp=2),
}


@pytest.fixture(scope="module")
def start(megatron, one_rank, tmp_path_factory):
    """Return a function: experts -> (directory of initial weights, losses of one process)."""
    known = {}

    def start_with(experts):
        if experts not in known:
            folder, layout = tmp_path_factory.mktemp("start"), Layout(experts=experts)
            one_rank.run(function_in(GPT, "write_start"), str(folder), layout)
            [alone] = one_rank.run(function_in(GPT, "train"), str(folder), layout, STEPS)
            known[experts] = (str(folder), alone)
        return known[experts]

    return start_with


def largest_difference(pool, layout, start, record):
    folder, alone = start(layout.experts)
    curves = pool.run(function_in(GPT, "train"), folder, layout, STEPS)
    difference = max(abs(one - other) for one, other in zip(alone.losses, curves[-1].losses, strict=True))
    record("largest_difference", difference)
    record("step_ms", round(curves[-1].step_ms))
    return difference


def test_the_loss_of_one_process_decreases(start):
    _, alone = start(None)
    assert len(alone.losses) == STEPS
    assert alone.losses[-1] < 0.9 * alone.losses[0]


@pytest.mark.parametrize("layout", TWO_RANKS.values(), ids=TWO_RANKS.keys())
def test_two_ranks_agree_with_one(layout, two_ranks, start, record_property):
    assert largest_difference(two_ranks, layout, start, record_property) < TOLERANCE


@pytest.mark.parametrize("layout", FOUR_RANKS.values(), ids=FOUR_RANKS.keys())
def test_four_ranks_agree_with_one(layout, four_ranks, start, record_property):
    assert largest_difference(four_ranks, layout, start, record_property) < TOLERANCE


def test_two_interleaved_stages_with_batched_sends_silently_train_incorrectly(
    two_ranks, start, record_property
):
    wrong = Layout(pp=2, vp=2, batched_sends=True)
    assert largest_difference(two_ranks, wrong, start, record_property) > 0.01
