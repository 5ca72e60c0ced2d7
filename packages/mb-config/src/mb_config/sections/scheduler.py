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
    """Steps of the decay phase of WSD; None: as many as `lr_decay_iters`, so that no stable phase remains."""

    lr_wsd_decay_samples: int | None = None
    """Sequences of the decay phase of WSD; None: as many as `lr_decay_samples`."""

    lr_warmup_fraction: float | None = None
    """Warm-up as a fraction of the length of the decay, as an alternative to the next two fields."""

    lr_warmup_iters: int = 0
    """Steps of linear warm-up."""

    lr_warmup_samples: int = 0
    """Sequences of linear warm-up."""

    lr_warmup_init: float = 0.0
    """Learning rate at which the warm-up starts."""

    max_lr: float | None = None
    """Highest learning rate. `optimizer.lr` sets it; a value here must equal that one."""

    min_lr: float | None = None
    """Lowest learning rate. `optimizer.min_lr` sets it; a value here must equal that one."""

    lr_decay_steps: int | None = field(default=None, init=False, compare=False)
    """Computed: sequence at which the decay ends."""

    lr_warmup_steps: int | float | None = field(default=None, init=False, compare=False)
    """Computed: sequences of the warm-up; not an integer for some values of `lr_warmup_fraction`."""

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
    """Computed: sequence at which the weight decay reaches its end."""

    wsd_decay_steps: int | None = field(default=None, init=False, compare=False)
    """Computed: sequences of the decay phase of WSD."""

    max_steps: int | None = None
    """Steps of the complete training that the schedule is for, if this run ends earlier; None: those of this run."""

    def finalize(self) -> None:
        """Check the section by itself. Does not modify it.

        Raises:
            ConfigError: If fields exclude each other (V059 to V063).
        """
        reject({"scheduler": self}, SECTION_RULES)
