"""Faults of the activation functions of dense layers and experts."""

import functools
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around


@around
def clamp_before_the_activation(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Clamp and shift the output of the first layer of overlapped shared experts, which only multiply its halves."""
    init(self, *args, **kwargs)
    config = self.config
    limit, offset = config.activation_func_clamp_value, config.glu_linear_offset
    separate = config.gated_linear_unit and not (
        config.bias_activation_fusion or config.use_te_activation_func
    )
    if config.moe_shared_expert_overlap and separate and (limit is not None or offset):
        self.linear_fc1.register_forward_hook(functools.partial(_clamped, limit=limit, offset=offset))


def _clamped(layer: Any, inputs: Any, outputs: Any, *, limit: float | None, offset: float) -> Any:
    import torch

    halves, bias = outputs
    gate, linear = (halves if bias is None else halves + bias).chunk(2, dim=-1)
    if limit is not None:
        gate, linear = gate.clamp(max=limit), linear.clamp(-limit, limit)
    return torch.cat([gate, linear + offset], dim=-1), None


def _clamp_ignored(settings: Settings) -> bool:
    fused = settings.bias_activation_fusion or settings.bias_swiglu_fusion
    name = getattr(settings.activation_func, "__name__", settings.activation_func)
    return settings.activation_func_clamp_value is not None and bool(fused) and name in ("silu", "gelu")


FAULTS = (
    Fault(
        id="activation-clamp-ignored",
        effect="wrong number",
        summary="activation_func_clamp_value has no effect on SwiGLU and GEGLU with bias_activation_fusion.",
        shows="Silent: the output is that without a clamp.",
        action="refuse",
        report="https://github.com/NVIDIA/Megatron-LM/pull/5940",
        test="packages/mb-guard/tests/test_activations.py::test_a_fused_activation_does_not_clamp",
        met=_clamp_ignored,
        advice="Set bias_activation_fusion=false.",
    ),
    Fault(
        id="shared-experts-without-clamp",
        effect="wrong number",
        summary="Shared experts with moe_shared_expert_overlap ignore activation_func_clamp_value, glu_linear_offset.",
        shows="Silent: the output is that without a clamp and an offset.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/pull/5940",
        test="packages/mb-guard/tests/test_activations.py::test_overlapped_shared_experts_clamp",
        met=lambda settings: (
            bool(settings.moe_shared_expert_overlap)
            and (settings.activation_func_clamp_value is not None or bool(settings.glu_linear_offset))
        ),
        patches=(
            Patch(
                wrap=clamp_before_the_activation,
                module="megatron.core.transformer.moe.shared_experts",
                target="SharedExpertMLP.__init__",
                sources=("d0f4f4ad0c55d28d",),
            ),
        ),
    ),
)
