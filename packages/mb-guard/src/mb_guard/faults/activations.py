"""Faults of the activation functions of dense layers and experts."""

from mb_guard.fault import Fault
from mb_guard.settings import Settings


def _clamp_ignored(settings: Settings) -> bool:
    if settings.activation_func_clamp_value is None:
        return False
    fused = settings.bias_activation_fusion or settings.bias_swiglu_fusion
    name = getattr(settings.activation_func, "__name__", settings.activation_func)
    return bool(fused and name in ("silu", "gelu")) or bool(settings.moe_shared_expert_overlap)


FAULTS = (
    Fault(
        id="activation-clamp-ignored",
        effect="wrong number",
        summary="activation_func_clamp_value has no effect on SwiGLU and GEGLU with bias_activation_fusion, nor on "
        "shared experts with moe_shared_expert_overlap.",
        shows="Silent: the output is that without a clamp.",
        action="refuse",
        report="https://github.com/NVIDIA/Megatron-LM/pull/5940",
        test="packages/mb-guard/tests/test_activations.py::test_a_fused_activation_does_not_clamp",
        met=_clamp_ignored,
        advice="Set bias_activation_fusion=false and moe_shared_expert_overlap=false.",
    ),
)
