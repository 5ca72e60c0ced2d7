"""Section of the learning-rate and weight-decay schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mb_config.container.section import Section
from mb_config.preflight.problems import reject
from mb_config.rules.schedule import SECTION_RULES


@dataclass(kw_only=True)
class SchedulerConfig(Section):
    """Style and lengths of the schedule. All lengths are in optimizer steps, or all in sequences."""

    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "linear"
    """Style of the decay after the warm-up; WSD is warm-up, stable, decay."""

    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """Style of the decay phase of WSD."""

    lr_decay_iters: int | None = None
    """Step at which the decay ends; None: `train.train_iters`."""

    lr_decay_samples: int | None = None
    """Sequence at which the decay ends; None: `train.train_samples`."""

    lr_wsd_decay_iters: int | None = None
    """Steps of the decay phase of WSD; None: the full horizon."""

    lr_wsd_decay_samples: int | None = None
    """Sequences of the decay phase of WSD; None: the full horizon."""

    lr_warmup_fraction: float | None = None
    """Warm-up as a fraction of the horizon, as an alternative to the next two fields."""

    lr_warmup_iters: int = 0
    """Steps of linear warm-up."""

    lr_warmup_samples: int = 0
    """Sequences of linear warm-up."""

    lr_warmup_init: float = 0.0
    """Learning rate at which the warm-up starts."""

    max_lr: float | None = None
    """The highest learning rate, which `optimizer.lr` sets; if it is named here as well, it is the same."""

    min_lr: float | None = None
    """The lowest learning rate, which `optimizer.min_lr` sets; if it is named here as well, it is the same."""

    lr_decay_steps: int | None = field(default=None, init=False, compare=False)
    """Computed: the horizon of the decay, in sequences."""

    lr_warmup_steps: int | float | None = field(default=None, init=False, compare=False)
    """Computed: the warm-up, in sequences. A fraction of the horizon need not be an integer."""

    override_opt_param_scheduler: bool = False
    """On resume, use the configured schedule instead of the stored one."""

    use_checkpoint_opt_param_scheduler: bool = False
    """On resume, use the stored schedule instead of the configured one."""

    start_weight_decay: float | None = None
    """Weight decay at the start; None: `optimizer.weight_decay`."""

    end_weight_decay: float | None = None
    """Weight decay at the end, not below the start; None: `optimizer.weight_decay`."""

    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """Style of the increase of the weight decay."""

    no_weight_decay_cond_type: Literal["qwen3_next"] | None = None
    """Model-specific selection of parameters without weight decay. Not implemented yet: rejected if set."""

    wd_incr_steps: int | None = field(default=None, init=False, compare=False)
    """Computed: the horizon of the weight decay, in sequences."""

    wsd_decay_steps: int | None = field(default=None, init=False, compare=False)
    """Computed: the decay phase of WSD, in sequences."""

    max_steps: int | None = None
    """Horizon in steps of the full run, for a run that ends earlier with the same schedule."""

    def finalize(self) -> None:
        """Check the section by itself. Does not modify it.

        Raises:
            ConfigError: If fields exclude each other (V059 to V063).
        """
        reject({"scheduler": self}, SECTION_RULES)
