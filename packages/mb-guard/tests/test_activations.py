"""Faults of activation functions; the right output is the formula of a clamped SwiGLU in torch."""

import pytest

from mb_guard.faults.activations import FAULTS
from mb_guard.settings import Settings

CLAMP = {"activation_func_clamp_value": 7.0}


def test_a_fused_activation_does_not_clamp(run_case):
    [(refused, clamps)] = run_case("case_activations.py", "clamp")
    assert refused.startswith("activation-clamp-ignored: ")
    assert clamps == [True, False]


@pytest.mark.parametrize(
    ("settings", "met"),
    [
        ({}, False),
        (CLAMP, False),
        ({**CLAMP, "bias_activation_fusion": True, "activation_func": "silu"}, True),
        ({**CLAMP, "bias_activation_fusion": True, "activation_func": "quick_gelu"}, False),
        ({**CLAMP, "moe_shared_expert_overlap": True, "activation_func": "quick_gelu"}, True),
        ({"bias_activation_fusion": True, "moe_shared_expert_overlap": True}, False),
    ],
)
def test_settings_without_effect_are_known(settings, met):
    assert FAULTS[0].met(Settings(settings)) is met
