"""Fields that each named precision recipe sets, and where they are copied. All other fields have their defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from mb_config.container.field_access import UNKNOWN, default_of, get_field, has_field
from mb_schema.rules import value_at

CORE = ("bf16", "fp16", "params_dtype")
"""Fields that define a recipe. A different value set by the user is a conflict."""
_SECTIONS = ("model", "optimizer", "ddp")

_BF16 = {
    "bf16": True,
    "params_dtype": "bfloat16",
    "pipeline_dtype": "bfloat16",
    "autocast_enabled": False,
    "grad_reduce_in_fp32": True,
}
_FP16 = {
    "fp16": True,
    "params_dtype": "float16",
    "pipeline_dtype": "float16",
    "autocast_enabled": False,
    "grad_reduce_in_fp32": False,
}
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

PRECISIONS: Mapping[str, Mapping[str, object]] = {
    "bf16_mixed": _BF16,
    "fp16_mixed": _FP16,
    "bf16_with_fp8_delayed_scaling_mixed": {**_BF16, **_DELAYED},
    "fp16_with_fp8_delayed_scaling_mixed": {**_FP16, **_DELAYED},
    "bf16_with_mxfp8_mixed": {**_BF16, **_MXFP8},
    "fp16_with_mxfp8_mixed": {**_FP16, **_MXFP8},
    "bf16_with_fp8_current_scaling_mixed": {**_BF16, **_CURRENT},
    "fp16_with_fp8_current_scaling_mixed": {**_FP16, **_CURRENT},
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": {**_BF16, **_TWO_LAYERS},
    "nanov2_bf16_with_fp8_current_scaling_mixed": {**_BF16, **_TWO_LAYERS, "fp8_recipe": "blockwise"},
    "bf16_with_fp8_subchannel_scaling_mixed": {**_BF16, **_SUBCHANNEL},
    "fp16_with_fp8_subchannel_scaling_mixed": {**_FP16, **_SUBCHANNEL},
    "bf16_with_nvfp4_mixed": {**_BF16, **_NVFP4},
    "nemotron_3_super_bf16_with_nvfp4_mixed": {**_BF16, **_SUPER},
}
"""Recipe name, with underscores, to the fields that it sets."""

REGISTERED: dict[str, Callable[[], object]] = {}
"""Name to function of the recipes that `mb_config.resolve.precision_recipes.register` adds."""


def canonical(name: str) -> str:
    """Return the name with underscores instead of hyphens."""
    return name.replace("-", "_")


def precision_names() -> list[str]:
    """Return the names of all recipes, the registered ones last."""
    return [*PRECISIONS, *REGISTERED]


def precision_field(precision: object, name: str) -> object:
    """Return a field of `mixed_precision`, which is a recipe name, a section or a mapping; None if it is not set."""
    if not isinstance(precision, str):
        return value_at(f"mixed_precision.{name}", {"mixed_precision": precision})
    key = canonical(precision)
    if key in REGISTERED:
        return getattr(REGISTERED[key](), name, None)
    return PRECISIONS.get(key, {}).get(name)


def precision_values(recipe: Any, config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each field that differs from the recipe, in the order of the recipe's fields.

    A section that is None is left out, as is None for a field whose default is not None. Each field is read when it
    is its turn, so that the caller may assign the values while it iterates.
    """
    for item in fields(recipe):
        for section in _SECTIONS:
            path, value = f"{section}.{item.name}", getattr(recipe, item.name)
            if path == "optimizer.fp8_recipe" and recipe.fp8 is None:
                # With the name of a recipe Megatron Core keeps float32 copies of the weights itself, and the
                # precision-aware optimizer saves nothing.
                value = None
            if not has_field(config, path):
                continue
            required = value is None and default_of(config, path) not in (None, UNKNOWN)
            if not required and get_field(config, path) != value:
                yield path, value
