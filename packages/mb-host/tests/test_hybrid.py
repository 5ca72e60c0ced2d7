"""Hybrid models: the scans are exact, and every parallel layout has the losses of one process."""

from pathlib import Path

import pytest
from host_layouts import Layout

from mb_host import RankFailedError, function_in

HYBRID, SCANS = (Path(__file__).parent / name for name in ("host_hybrid.py", "host_ssm_scan.py"))
pytestmark = pytest.mark.usefixtures("megatron")
STEPS = 6
TOLERANCE = 1e-5
ALL, EXPERTS, AHEAD = "MG*-", "M*ME", "M*/*-"


@pytest.mark.parametrize("scan", ["state_space", "gated_delta"])
@pytest.mark.parametrize(("length", "chunk"), [(64, 16), (65, 16), (100, 128), (7, 3)])
def test_scans_by_chunks_are_the_recurrences(scan, length, chunk, one_rank):
    [(outputs, gradients)] = one_rank.run(function_in(SCANS, scan), length, chunk)
    assert outputs < 1e-12
    assert gradients < 1e-11


def test_the_gated_delta_rule_equals_megatrons(one_rank):
    [difference] = one_rank.run(function_in(SCANS, "against_megatrons_gated_delta_rule"))
    assert difference < 1e-6


def test_short_vectors_have_gradients_in_float16(one_rank):
    [gradient] = one_rank.run(function_in(SCANS, "short_vectors_in_float16"))
    assert gradient == pytest.approx([971.0, -9.4, -9.4, -9.4], rel=0.05)


def test_a_sequence_of_a_pack_does_not_read_the_one_before_it(one_rank):
    [(difference, leaked)] = one_rank.run(function_in(SCANS, "packed_mamba"))
    assert difference < 1e-12
    assert leaked == 0


@pytest.mark.parametrize("has_norm", [True, False])
def test_both_ways_of_a_mamba_layer_are_equal(has_norm, one_rank):
    """Megatron's `use_mamba_mem_eff_path` selects the kernel, not the result."""
    [difference] = one_rank.run(function_in(HYBRID, "both_ways_of_a_mixer"), has_norm)
    assert difference < 1e-5


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("linear", "parallel_mode='column'"),
        ("activation", "activation='relu'"),
        ("state", "output_final_state=True"),
        ("pattern", "repeat_groups: pattern 'a b'"),
        ("packed convolution", "causal_conv1d: activation='silu'"),
        ("state of Mamba", "return_final_states=True"),
    ],
)
def test_unsupported_arguments_of_the_scans_are_rejected(case, message, one_rank):
    with pytest.raises(RankFailedError, match=f"ValueError: .*{message}"):
        one_rank.run(function_in(SCANS, "unsupported"), case)


@pytest.fixture(scope="module")
def start(one_rank, tmp_path_factory):
    """Return a function: layout -> (directory of initial weights, losses of one process)."""
    known = {}

    def start_with(layout):
        pattern = layout.pattern.replace("|", "")
        if pattern not in known:
            alone = Layout(pattern=pattern, experts=layout.experts)
            folder = str(tmp_path_factory.mktemp("start"))
            one_rank.run(function_in(HYBRID, "write_start"), folder, alone)
            [curve] = one_rank.run(function_in(HYBRID, "train"), folder, alone, STEPS)
            known[pattern] = (folder, curve.losses)
        return known[pattern]

    return start_with


TWO_RANKS = {
    "dp2": Layout(pattern=ALL),
    "tp2-sp": Layout(pattern=ALL, tp=2, sequence_parallel=True),
    "cp2": Layout(pattern=ALL, cp=2),
    "pp2": Layout(pattern="MG|*-", pp=2),
    "pp2-vp2": Layout(pattern="M|G|*|-", pp=2, vp=2),
    "ep2": Layout(pattern=EXPERTS, ep=2, experts=4),
    "tp2-mamba": Layout(pattern="M*M-", tp=2),
    "pp2-mtp": Layout(pattern="M|*/*-", pp=2),
}


@pytest.mark.parametrize("layout", TWO_RANKS.values(), ids=TWO_RANKS.keys())
def test_two_ranks_agree_with_one(layout, two_ranks, start):
    folder, alone = start(layout)
    curves = two_ranks.run(function_in(HYBRID, "train"), folder, layout, STEPS)
    assert curves[-1].losses == pytest.approx(alone, abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("together", [True, False])
def test_copies_of_a_gated_delta_norm_drift_apart_without_sequence_parallelism(together, two_ranks, start):
    layout = Layout(pattern=ALL, tp=2, sequence_parallel=together)
    norms = two_ranks.run(function_in(HYBRID, "norms_of_gated_delta"), start(layout)[0], layout, 2)
    assert (norms[0] == norms[1]) == together


def test_the_loss_decreases(start):
    _, losses = start(Layout(pattern=ALL))
    assert losses[-1] < losses[0] - 0.1
