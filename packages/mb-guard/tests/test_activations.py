"""Faults of activation functions; the right output is the formula of a clamped SwiGLU in torch."""

import pytest

from mb_guard.fault import Settings
from mb_guard.faults.activations import FAULTS

CLAMP = {"activation_func_clamp_value": 7.0}


def test_a_fused_activation_does_not_clamp(run_case):
    [(refused, clamps)] = run_case("case_activations.py", "clamp")
    assert refused.startswith("activation-clamp-ignored: ")
    assert clamps == [True, False]


@pytest.mark.parametrize(("clamp", "offset"), [(0.5, 0.0), (None, 1.0), (0.5, 1.0), (None, 0.0)])
def test_overlapped_shared_experts_clamp(clamp, offset, run_case):
    assert run_case("case_activations.py", "overlapped", None, clamp, offset) == [pytest.approx(0, abs=1e-4)]
    [apart] = run_case("case_activations.py", "overlapped", "shared-experts-without-clamp", clamp, offset)
    assert (apart > 0.1) == (clamp is not None or offset != 0)


@pytest.mark.parametrize(
    ("settings", "met"),
    [
        ({}, False),
        (CLAMP, False),
        ({**CLAMP, "bias_activation_fusion": True, "activation_func": "silu"}, True),
        ({**CLAMP, "bias_activation_fusion": True, "activation_func": "quick_gelu"}, False),
        ({"bias_activation_fusion": True, "activation_func": "silu"}, False),
    ],
)
def test_settings_without_effect_are_known(settings, met):
    assert FAULTS[0].met(Settings(settings)) is met
