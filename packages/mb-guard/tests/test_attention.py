"""Faults of attention: each is there without its correction, and absent with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from mb_guard.fault import Settings
from mb_guard.faults.attention import FAULTS


def test_a_window_keeps_the_mask(run_case):
    assert run_case("case_attention.py", "window", None) == pytest.approx([0], abs=1e-6)
    assert run_case("case_attention.py", "window", "window-without-mask")[0] > 0.1


def test_the_norm_of_latent_queries_has_the_gradient_of_one_rank(run_case):
    right = run_case("case_attention.py", "latent_norms", None, ranks=2)
    wrong = run_case("case_attention.py", "latent_norms", "latent-norm-summed-twice", ranks=2)
    assert right == [pytest.approx([1, 1], abs=1e-4)] * 2
    assert wrong == [pytest.approx([2, 1], abs=1e-4)] * 2


def test_the_gradient_norm_has_the_sinks_of_all_ranks(run_case):
    for one, two in run_case("case_attention.py", "sinks", None, ranks=2):
        assert two == pytest.approx(one, rel=1e-4)
    for one, two in run_case("case_attention.py", "sinks", "sinks-missing-in-gradient-norm", ranks=2):
        assert two < 0.95 * one


@pytest.mark.parametrize(("guarded", "counted"), [("guarded", True), ("without", False)])
def test_the_gradient_norm_has_the_sinks_of_transformer_engine(guarded, counted, megatron_on_a_host):
    program = Path(__file__).parent / "case_transformer_engine.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), guarded], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"2 {counted}"


def test_the_norm_of_a_delta_net_has_the_gradient_of_one_rank(run_case):
    for found, right in run_case("case_attention.py", "delta_net_norm", None, ranks=2):
        assert found == pytest.approx(right, rel=1e-5)
    for found, right in run_case("case_attention.py", "delta_net_norm", "delta-net-norm-not-summed", ranks=2):
        assert found != pytest.approx(right, rel=0.05)


def test_ranks_draw_different_convolutions(run_case):
    first, second = run_case("case_attention.py", "delta_net_convolution", None, ranks=2)
    assert first != second
    first, second = run_case(
        "case_attention.py", "delta_net_convolution", "equal-convolutions-on-all-ranks", ranks=2
    )
    assert first == second


def test_states_end_with_their_sequence(run_case):
    assert run_case("case_attention.py", "packed_states", None) == [pytest.approx(0, abs=1e-6)]
    [wrong] = run_case("case_attention.py", "packed_states", "states-cross-packs")
    assert wrong > 1e-3


def test_cross_attention_has_its_own_group(run_case):
    right = run_case("case_attention.py", "cross_attention", None, ranks=4)
    wrong = run_case("case_attention.py", "cross_attention", "cross-attention-group", ranks=4)
    assert right == [pytest.approx([0, 0], abs=1e-5)] * 4
    assert all(error > 0.1 for rank in wrong for error in rank)


@pytest.mark.parametrize(
    ("fault", "meets", "without"),
    [
        (
            "reset-attention-mask",
            {"reset_attention_mask": True, "transformer_impl": "transformer_engine"},
            {"reset_attention_mask": True, "transformer_impl": "local", "create_attention_mask": True},
        ),
        (
            "reset-position-ids",
            {"reset_position_ids": True, "position_embedding_type": "rope"},
            {"reset_position_ids": True, "position_embedding_type": "learned_absolute"},
        ),
    ],
)
def test_settings_without_effect_are_known(fault, meets, without):
    [record] = [each for each in FAULTS if each.id == fault]
    assert record.met(Settings(meets))
    assert not record.met(Settings(without))
