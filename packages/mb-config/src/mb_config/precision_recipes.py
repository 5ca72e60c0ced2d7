"""The named precision recipes. Every name may be written with underscores or with hyphens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mb_config.errors import ConfigReadError
from mb_config.sections.precision import MixedPrecisionConfig


class UnknownPrecisionError(ConfigReadError, KeyError):
    """There is no precision recipe of that name."""

    __str__ = ConfigReadError.__str__


def bf16_mixed() -> MixedPrecisionConfig:
    """Compute in bfloat16, reduce gradients in float32."""
    return _bf16()


def fp16_mixed() -> MixedPrecisionConfig:
    """Compute in float16 with an adapted loss scale, reduce gradients in float16."""
    return _fp16()


def get_mixed_precision_config(name: str | MixedPrecisionConfig) -> MixedPrecisionConfig:
    """A fresh config for a name; a config is returned as it is.

    Raises:
        UnknownPrecisionError: no such name; lists them all.
    """
    if isinstance(name, MixedPrecisionConfig):
        return name
    recipe = RECIPES.get(name.replace("-", "_"))
    if recipe is None:
        raise UnknownPrecisionError(
            f"no recipe {name!r}; there are {', '.join(RECIPES)}", path="mixed_precision"
        )
    return recipe()


def _bf16(**more: Any) -> MixedPrecisionConfig:
    base = {
        "bf16": True,
        "params_dtype": "bfloat16",
        "pipeline_dtype": "bfloat16",
        "grad_reduce_in_fp32": True,
    }
    return MixedPrecisionConfig(**{**base, "autocast_enabled": False, **more})


def _fp16(**more: Any) -> MixedPrecisionConfig:
    base = {
        "fp16": True,
        "params_dtype": "float16",
        "pipeline_dtype": "float16",
        "grad_reduce_in_fp32": False,
    }
    return MixedPrecisionConfig(**{**base, "autocast_enabled": False, **more})


_DELAYED = {
    "fp8": "hybrid",
    "fp8_recipe": "delayed",
    "fp8_margin": 0,
    "fp8_amax_history_len": 1024,
    "fp8_amax_compute_algo": "max",
    "fp8_param_gather": True,
}
_MXFP8 = {
    "fp8": "e4m3",
    "fp8_recipe": "mxfp8",
    "fp8_param_gather": True,
    "reuse_grad_buf_for_mxfp8_param_ag": True,
}
_CURRENT = {
    "fp8": "hybrid",
    "fp8_recipe": "tensorwise",
    "first_last_layers_bf16": True,
    "num_layers_at_start_in_bf16": 1,
    "num_layers_at_end_in_bf16": 1,
    "fp8_param_gather": True,
}
_TWO_LAYERS = {**_CURRENT, "num_layers_at_start_in_bf16": 2, "num_layers_at_end_in_bf16": 2}
_SUBCHANNEL = {"fp8": "hybrid", "fp8_recipe": "blockwise", "fp8_param_gather": False}
_NVFP4 = {
    "fp8": None,
    "fp4": "e2m1",
    "fp4_recipe": "nvfp4",
    "fp8_param_gather": False,
    "fp4_param_gather": True,
}
_SUPER = {**_NVFP4, "first_last_layers_bf16": True, "num_layers_at_end_in_bf16": 14}

RECIPES: dict[str, Callable[[], MixedPrecisionConfig]] = {
    "bf16_mixed": bf16_mixed,
    "fp16_mixed": fp16_mixed,
    "bf16_with_fp8_delayed_scaling_mixed": lambda: _bf16(**_DELAYED),
    "fp16_with_fp8_delayed_scaling_mixed": lambda: _fp16(**_DELAYED),
    "bf16_with_mxfp8_mixed": lambda: _bf16(**_MXFP8),
    "fp16_with_mxfp8_mixed": lambda: _fp16(**_MXFP8),
    "bf16_with_fp8_current_scaling_mixed": lambda: _bf16(**_CURRENT),
    "fp16_with_fp8_current_scaling_mixed": lambda: _fp16(**_CURRENT),
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": lambda: _bf16(**_TWO_LAYERS),
    "nanov2_bf16_with_fp8_current_scaling_mixed": lambda: _bf16(**{**_TWO_LAYERS, "fp8_recipe": "blockwise"}),
    "bf16_with_fp8_subchannel_scaling_mixed": lambda: _bf16(**_SUBCHANNEL),
    "fp16_with_fp8_subchannel_scaling_mixed": lambda: _fp16(**_SUBCHANNEL),
    "bf16_with_nvfp4_mixed": lambda: _bf16(**_NVFP4),
    "nemotron_3_super_bf16_with_nvfp4_mixed": lambda: _bf16(**_SUPER),
}
