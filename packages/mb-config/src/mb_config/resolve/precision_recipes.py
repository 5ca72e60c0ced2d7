"""Named precision recipes: the ready ones, and those that users register. Names have underscores or hyphens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mb_config.cli.message_text import truncate_repr
from mb_config.errors import ConfigReadError
from mb_config.overrides.registration import RegistrationError
from mb_config.resolve.precision_table import PRECISIONS, REGISTERED, canonical, precision_names
from mb_config.sections.precision import MixedPrecisionConfig

_Factory = TypeVar("_Factory", bound=Callable[[], MixedPrecisionConfig])


class UnknownPrecisionError(ConfigReadError, KeyError):
    """The name of a precision recipe is unknown."""


def get_mixed_precision_config(name: str | MixedPrecisionConfig) -> MixedPrecisionConfig:
    """Return a new configuration for a name. A configuration is returned unchanged.

    Raises:
        UnknownPrecisionError: If there is no such name; lists all names.
        RegistrationError: If a registered function returns anything else.
    """
    if isinstance(name, MixedPrecisionConfig):
        return name
    key = canonical(name)
    if key in PRECISIONS:
        values: Any = PRECISIONS[key]
        return MixedPrecisionConfig(**values)
    if key not in REGISTERED:
        raise UnknownPrecisionError(
            f"unknown recipe {truncate_repr(name)}. Use one of {', '.join(precision_names())}",
            path="mixed_precision",
        )
    built = REGISTERED[key]()
    if not isinstance(built, MixedPrecisionConfig):
        raise RegistrationError(
            f"{key}: the function returns {truncate_repr(built)}. Return a MixedPrecisionConfig.",
            path="mixed_precision",
        )
    return built


def register(factory: _Factory) -> _Factory:
    """Register a function without parameters as the precision recipe of its name. A decorator.

    Afterwards `mixed_precision: name` names it, in every process that imports the function's module. Registering a
    function again, such as the next version of a notebook cell, replaces it.

    Raises:
        RegistrationError: If a ready recipe or a function of another module has this name.
    """
    name = factory.__name__
    other = REGISTERED.get(name)
    if name in PRECISIONS or (other is not None and other.__module__ != factory.__module__):
        owner = other.__module__ if other is not None else "mb_config"
        raise RegistrationError(
            f"{factory.__module__}.{name}: {owner} has a precision recipe of this name. Rename the function.",
            path="mixed_precision",
        )
    REGISTERED[name] = factory
    return factory


def _ready(name: str) -> Callable[[], MixedPrecisionConfig]:
    def build() -> MixedPrecisionConfig:
        return get_mixed_precision_config(name)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"Return the precision recipe {name}."
    return build


bf16_mixed = _ready("bf16_mixed")
fp16_mixed = _ready("fp16_mixed")
bf16_with_fp8_delayed_scaling_mixed = _ready("bf16_with_fp8_delayed_scaling_mixed")
fp16_with_fp8_delayed_scaling_mixed = _ready("fp16_with_fp8_delayed_scaling_mixed")
bf16_with_mxfp8_mixed = _ready("bf16_with_mxfp8_mixed")
fp16_with_mxfp8_mixed = _ready("fp16_with_mxfp8_mixed")
bf16_with_fp8_current_scaling_mixed = _ready("bf16_with_fp8_current_scaling_mixed")
fp16_with_fp8_current_scaling_mixed = _ready("fp16_with_fp8_current_scaling_mixed")
nemotron_h_bf16_with_fp8_current_scaling_mixed = _ready("nemotron_h_bf16_with_fp8_current_scaling_mixed")
nanov2_bf16_with_fp8_current_scaling_mixed = _ready("nanov2_bf16_with_fp8_current_scaling_mixed")
bf16_with_fp8_subchannel_scaling_mixed = _ready("bf16_with_fp8_subchannel_scaling_mixed")
fp16_with_fp8_subchannel_scaling_mixed = _ready("fp16_with_fp8_subchannel_scaling_mixed")
bf16_with_nvfp4_mixed = _ready("bf16_with_nvfp4_mixed")
nemotron_3_super_bf16_with_nvfp4_mixed = _ready("nemotron_3_super_bf16_with_nvfp4_mixed")
