"""T5: every parallel layout has the losses of one process."""

from pathlib import Path

import pytest
from host_layouts import Layout

from mb_host import function_in

T5 = Path(__file__).parent / "host_t5.py"
pytestmark = pytest.mark.usefixtures("megatron")
STEPS = 6


@pytest.fixture(scope="module")
def start(one_rank, tmp_path_factory):
    """Return the directory of initial weights, and the losses of one process."""
    folder = str(tmp_path_factory.mktemp("start"))
    one_rank.run(function_in(T5, "write_start"), folder, Layout())
    [curve] = one_rank.run(function_in(T5, "train"), folder, Layout(), STEPS)
    return folder, curve.losses


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(distributed_optimizer=True),
        Layout(tp=2),
        Layout(tp=2, sequence_parallel=True),
    ],
    ids=["dp2", "dp2-distributed-optimizer", "tp2", "tp2-sp"],
)
def test_two_ranks_agree_with_one(layout, two_ranks, start):
    folder, alone = start
    curves = two_ranks.run(function_in(T5, "train"), folder, layout, STEPS)
    assert curves[-1].losses == pytest.approx(alone, abs=1e-5, rel=0)


def test_the_loss_decreases(start):
    _, losses = start
    assert losses[-1] < losses[0] - 0.05
