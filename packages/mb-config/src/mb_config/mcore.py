"""Conversion of the sections `optimizer`, `ddp` and `scheduler` to objects of Megatron Core.

Importing this module imports torch and Megatron Core.
"""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import version
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallelConfig as MegatronDDPConfig
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import ParamGroupOverride, ParamKey, get_standard_config_overrides
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from mb_config.container.section import field_default
from mb_config.errors import ConfigurationError
from mb_config.rules.precision import DTYPES
from mb_config.schedules.learning_rate import SchedulerSteps, weight_decays
from mb_config.sections import ddp, optimizer
from mb_config.sections.scheduler import SchedulerConfig

__all__ = [
    "DistributedDataParallelConfig",
    "DroppedFieldError",
    "OptimizerConfig",
    "build_scheduler",
    "standard_overrides",
    "to_dtype",
    "to_megatron",
]


class DroppedFieldError(ConfigurationError, TypeError):
    """A section sets a field that the installed version of Megatron Core does not have."""


class _Deferred:
    """One of Megatron's classes with its checks deferred to `finalize()`: fields can be set one after the other."""

    def __post_init__(self) -> None:
        """Skip Megatron's checks, which `finalize` runs."""

    def finalize(self) -> None:
        """Run Megatron's checks and compute its derived fields. Idempotent.

        Raises:
            AssertionError, ValueError, RuntimeError: Raised by Megatron.
        """
        super().__post_init__()  # type: ignore[misc]  # of Megatron's class


class OptimizerConfig(_Deferred, MegatronOptimizerConfig):  # type: ignore[misc]
    """Megatron's class with its checks deferred to `finalize()`."""


class DistributedDataParallelConfig(_Deferred, MegatronDDPConfig):  # type: ignore[misc]
    """Megatron's class with its checks deferred to `finalize()`."""


Section = optimizer.OptimizerConfig | ddp.DistributedDataParallelConfig
"""A section for which Megatron Core has a dataclass."""


def to_megatron(section: Section, **runtime: Any) -> Any:
    """Return Megatron Core's dataclass with the values of a section, after Megatron's checks.

    A section of mb-config is not modified: its values are copied. An object of Megatron's own classes is updated with
    `runtime` and returned itself; those of the two classes of this module, which derive from these, are finalized.

    Args:
        section: The section `optimizer` or `ddp`.
        runtime: Fields that only exist at run time, such as `timers`.

    Raises:
        DroppedFieldError: If a field that is not at its default does not exist in the installed Megatron Core.
        TypeError: If `section` is another section.
        AssertionError, ValueError, RuntimeError: Raised by Megatron for values that no rule rejects.
    """
    if isinstance(section, MegatronOptimizerConfig | MegatronDDPConfig):
        for name, value in runtime.items():
            setattr(section, name, value)
        if isinstance(section, OptimizerConfig | DistributedDataParallelConfig):
            section.finalize()
        return section
    target = _target(section)
    known = {item.name: item for item in fields(target) if item.init}
    values = {item.name: getattr(section, item.name) for item in fields(section) if item.init}
    lost = [
        item.name
        for item in fields(section)
        if item.name not in known and getattr(section, item.name) != field_default(item)
    ]
    if lost:
        raise DroppedFieldError(
            f"{', '.join(lost)}: {target.__name__} of the installed Megatron Core {version('megatron-core')} does not "
            f"have these fields. Leave them at their defaults or install a version that has them."
        )
    converted = {name: _convert(name, value) for name, value in values.items() if name in known}
    return target(**{**converted, **runtime})


def to_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name such as "bfloat16".

    Raises:
        ValueError: If no section accepts the dtype.
    """
    if name not in DTYPES:
        raise ValueError(f"{name!r}: unsupported dtype. Use one of {', '.join(DTYPES)}.")
    dtype: torch.dtype = vars(torch)[name]
    return dtype


def standard_overrides(optimizer_config: object) -> dict[ParamKey, ParamGroupOverride]:
    """Return Megatron's standard overrides: no weight decay for biases and 1-D parameters, decoupled learning rates.

    Args:
        optimizer_config: Object with `apply_wd_to_qk_layernorm`, `decoupled_lr` and `decoupled_min_lr`.
    """
    overrides: dict[ParamKey, ParamGroupOverride] = get_standard_config_overrides(optimizer_config)
    return overrides


def build_scheduler(
    optimizer: Any,
    *,
    scheduler: SchedulerConfig,
    optimizer_config: optimizer.OptimizerConfig,
    steps: SchedulerSteps,
) -> OptimizerParamScheduler:
    """Return Megatron's scheduler of learning rate and weight decay for `optimizer`, at step 0.

    Megatron's scheduler counts sequences: call `step(increment)` with the sequences of each global batch. Weight
    decays that are None in `scheduler` are those of `optimizer_config`; a minimum learning rate of None is 0.

    Args:
        optimizer: Megatron's optimizer or an object with `param_groups`; their learning rates are set.
        scheduler: The section `scheduler`.
        optimizer_config: The section `optimizer`.
        steps: Lengths of warmup and decay in sequences, as `mb_config.scheduler_steps` computes them.

    Raises:
        ValueError: If `optimizer_config.lr` is None.
    """
    if optimizer_config.lr is None:
        raise ValueError("optimizer.lr: is not set, and there is no default. Set optimizer.lr.")
    start, end = weight_decays(scheduler, optimizer_config)
    return OptimizerParamScheduler(
        optimizer,
        init_lr=scheduler.lr_warmup_init,
        max_lr=optimizer_config.lr,
        min_lr=optimizer_config.min_lr or 0.0,
        lr_warmup_steps=steps.lr_warmup_steps,
        lr_decay_steps=steps.lr_decay_steps,
        lr_decay_style=scheduler.lr_decay_style,
        start_wd=start,
        end_wd=end,
        wd_incr_steps=steps.wd_incr_steps,
        wd_incr_style=scheduler.weight_decay_incr_style,
        use_checkpoint_opt_param_scheduler=scheduler.use_checkpoint_opt_param_scheduler,
        override_opt_param_scheduler=scheduler.override_opt_param_scheduler,
        wsd_decay_steps=steps.wsd_decay_steps,
        lr_wsd_decay_style=scheduler.lr_wsd_decay_style,
    )


def _target(section: object) -> Any:
    if isinstance(section, optimizer.OptimizerConfig):
        return MegatronOptimizerConfig
    if isinstance(section, ddp.DistributedDataParallelConfig):
        return MegatronDDPConfig
    raise TypeError(
        f"{type(section).__name__}: cannot be converted to a dataclass of Megatron Core. Pass an OptimizerConfig or a "
        f"DistributedDataParallelConfig."
    )


def _convert(name: str, value: Any) -> Any:
    return to_dtype(value) if name.endswith("dtype") and isinstance(value, str) else value
