"""Faults of Megatron-LM's own training code (`megatron.training`)."""

from typing import Any

from mb_guard.fault import Fault, Function, Patch, around


@around
def pass_rope_scaling_factor(gpt_config_from_args: Function, args: Any, *others: Any, **kwargs: Any) -> Any:
    """Pass --rope-scaling-factor to the model configuration."""
    config = gpt_config_from_args(args, *others, **kwargs)
    config.rope_scaling_factor = args.rope_scaling_factor
    return config


FAULTS = (
    Fault(
        id="rope-scaling-factor-ignored",
        effect="wrong number",
        summary="Megatron-LM reads --rope-scaling-factor and does not pass it to the model, which scales by 8.",
        shows="Silent: a model with a factor of 32, as Llama 3.2 has, trains with 8.",
        action="put right",
        test="packages/mb-guard/tests/test_megatron_lm.py::test_the_rope_scaling_factor_reaches_the_model",
        report="https://github.com/NVIDIA/Megatron-LM/issues/6305",
        met=lambda settings: settings.rope_scaling_factor not in (None, 8),
        patches=(
            Patch(
                wrap=pass_rope_scaling_factor,
                module="megatron.training.argument_utils",
                target="gpt_config_from_args",
                sources=("a9f10d32f4e0a78c",),
            ),
        ),
    ),
)
