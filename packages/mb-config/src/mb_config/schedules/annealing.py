"""Sections of optimizer and scheduler as recipes pair them: sharded Adam or Muon with cosine annealing.

Function names, parameters and values are those of Megatron-Bridge's recipes.
"""

from __future__ import annotations

from typing import Any

from mb_config.resolve.precision_table import precision_field
from mb_config.sections.optimizer import OptimizerConfig
from mb_config.sections.scheduler import SchedulerConfig

_WEIGHT_DECAY = 0.033
"""Weight decay of the schedule, from start to end."""


def distributed_fused_adam_with_cosine_annealing(  # noqa: PLR0913 (the fields of two sections)
    precision: str = "bf16-mixed",
    lr_warmup_iters: int = 2000,
    lr_decay_iters: int | None = None,
    adam_beta1: float = 0.9,
    adam_beta2: float = 0.95,
    adam_eps: float = 1e-8,
    weight_decay: float = 0.1,
    max_lr: float = 1e-4,
    min_lr: float | None = None,
    clip_grad: float = 1.0,
    start_weight_decay: float = _WEIGHT_DECAY,
    end_weight_decay: float = _WEIGHT_DECAY,
    weight_decay_incr_style: Any = "constant",
    lr_decay_style: Any = "cosine",
) -> tuple[OptimizerConfig, SchedulerConfig]:
    """Return the sections of Adam with a sharded state, and of a schedule in iterations.

    Args:
        precision: Name of a precision recipe, or "16-mixed" for float16; any other name is float32.
        lr_warmup_iters: Iterations of warmup.
        lr_decay_iters: Iterations until `min_lr`, and those of the decay of a WSD schedule; None: those of the run.
        adam_beta1: Decay of the first moment.
        adam_beta2: Decay of the second moment.
        adam_eps: Term that is added to the denominator of Adam.
        weight_decay: Weight decay of the optimizer; the scheduler replaces it.
        max_lr: Learning rate after the warmup.
        min_lr: Learning rate at the end; None: a tenth of `max_lr`.
        clip_grad: Largest norm of the gradient.
        start_weight_decay: Weight decay of the first iteration.
        end_weight_decay: Weight decay of the last iteration.
        weight_decay_incr_style: Course of the weight decay between them.
        lr_decay_style: Course of the learning rate after the warmup.
    """
    return OptimizerConfig(
        optimizer="adam",
        lr=max_lr,
        min_lr=0.1 * max_lr if min_lr is None else min_lr,
        weight_decay=weight_decay,
        adam_beta1=adam_beta1,
        adam_beta2=adam_beta2,
        adam_eps=adam_eps,
        clip_grad=clip_grad,
        use_distributed_optimizer=True,
        **_formats(precision),
    ), SchedulerConfig(
        start_weight_decay=start_weight_decay,
        end_weight_decay=end_weight_decay,
        weight_decay_incr_style=weight_decay_incr_style,
        lr_decay_style=lr_decay_style,
        lr_wsd_decay_style="minus_sqrt",
        lr_wsd_decay_iters=lr_decay_iters if lr_decay_style == "WSD" else None,
        lr_warmup_iters=lr_warmup_iters,
        lr_decay_iters=lr_decay_iters,
        override_opt_param_scheduler=True,
    )


def distributed_fused_adam_with_cosine_annealing_samples(  # noqa: PLR0913 (the fields of two sections)
    precision: str = "bf16-mixed",
    lr_warmup_samples: int | None = None,
    lr_decay_samples: int | None = None,
    adam_beta1: float = 0.9,
    adam_beta2: float = 0.95,
    adam_eps: float = 1e-8,
    weight_decay: float = 0.1,
    max_lr: float = 1e-4,
    min_lr: float | None = None,
    clip_grad: float = 1.0,
) -> tuple[OptimizerConfig, SchedulerConfig]:
    """Return the sections of Adam with a sharded state, and of a schedule in samples.

    None for `lr_warmup_samples` means no warmup, for `lr_decay_samples` the samples of the run. The others are those of
    `distributed_fused_adam_with_cosine_annealing`.
    """
    optimizer, _ = distributed_fused_adam_with_cosine_annealing(
        precision,
        adam_beta1=adam_beta1,
        adam_beta2=adam_beta2,
        adam_eps=adam_eps,
        weight_decay=weight_decay,
        max_lr=max_lr,
        min_lr=min_lr,
        clip_grad=clip_grad,
    )
    return optimizer, _cosine(lr_warmup_samples=lr_warmup_samples or 0, lr_decay_samples=lr_decay_samples)


def distributed_muon_with_cosine_annealing(  # noqa: PLR0913 (the fields of two sections)
    precision: str = "bf16-mixed",
    muon_momentum: float = 0.95,
    muon_use_nesterov: bool = True,
    muon_scale_mode: str = "spectral",
    muon_fp32_matmul_prec: str = "medium",
    muon_num_ns_steps: int = 5,
    muon_tp_mode: str = "blockwise",
    muon_extra_scale_factor: float = 1.0,
    muon_scalar_optimizer: str = "adam",
    lion_beta1: float = 0.95,
    lion_beta2: float = 0.98,
    lr_warmup_iters: int = 2000,
    lr_decay_iters: int = 2000,
    weight_decay: float = 0.1,
    max_lr: float = 1e-4,
    min_lr: float | None = None,
    clip_grad: float = 1.0,
) -> tuple[OptimizerConfig, SchedulerConfig]:
    """Return the sections of Muon, whose state is sharded by layers, and of a schedule in iterations.

    Parameters have the names of the optimizer's fields, except `muon_use_nesterov` for `muon_nesterov`. `min_lr`
    of None is 0.
    """
    optimizer = OptimizerConfig(
        optimizer="dist_muon",
        lr=max_lr,
        min_lr=min_lr,
        weight_decay=weight_decay,
        muon_momentum=muon_momentum,
        muon_nesterov=muon_use_nesterov,
        muon_scale_mode=muon_scale_mode,
        muon_fp32_matmul_prec=muon_fp32_matmul_prec,
        muon_num_ns_steps=muon_num_ns_steps,
        muon_tp_mode=muon_tp_mode,
        muon_extra_scale_factor=muon_extra_scale_factor,
        muon_scalar_optimizer=muon_scalar_optimizer,
        lion_beta1=lion_beta1,
        lion_beta2=lion_beta2,
        clip_grad=clip_grad,
        **_formats(precision),
    )
    return optimizer, _cosine(lr_warmup_iters=lr_warmup_iters, lr_decay_iters=lr_decay_iters)


def _cosine(**lengths: int | None) -> SchedulerConfig:
    """Return a cosine schedule with constant weight decay."""
    fields: dict[str, Any] = {**lengths}
    return SchedulerConfig(
        start_weight_decay=_WEIGHT_DECAY,
        end_weight_decay=_WEIGHT_DECAY,
        weight_decay_incr_style="constant",
        lr_decay_style="cosine",
        override_opt_param_scheduler=True,
        **fields,
    )


def _formats(precision: str) -> dict[str, Any]:
    """Return the field of the optimizer that a precision sets; a false one remains free for `mixed_precision`."""
    name = "fp16_mixed" if precision == "16-mixed" else precision
    return {field: True for field in ("bf16", "fp16") if precision_field(name, field)}
