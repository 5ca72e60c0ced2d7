"""The course of the learning rate and of the weight decay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mb_config.problems import reject
from mb_config.rules.schedule import SECTION_RULES
from mb_config.section import Section


@dataclass(kw_only=True)
class SchedulerConfig(Section):
    """Shape and length of the schedule. Lengths are in optimizer steps or in sequences, never in both."""

    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "linear"
    """Shape of the decay after the warm-up; WSD is warm-up, stable, decay."""

    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """Shape of the last phase of WSD."""

    lr_decay_iters: int | None = None
    """Step at which the decay ends; None: `train.train_iters`."""

    lr_decay_samples: int | None = None
    """Sequence at which the decay ends; None: `train.train_samples`."""

    lr_wsd_decay_iters: int | None = None
    """Steps of the last phase of WSD; None: the whole horizon."""

    lr_wsd_decay_samples: int | None = None
    """Sequences of the last phase of WSD; None: the whole horizon."""

    lr_warmup_fraction: float | None = None
    """Warm-up as a fraction of the horizon, instead of the next two fields."""

    lr_warmup_iters: int = 0
    """Steps of linear warm-up."""

    lr_warmup_samples: int = 0
    """Sequences of linear warm-up."""

    lr_warmup_init: float = 0.0
    """Learning rate at which the warm-up starts."""

    lr_decay_steps: int | None = field(default=None, init=False, compare=False)
    """Computed: the horizon of the decay, in sequences."""

    lr_warmup_steps: int | float | None = field(default=None, init=False, compare=False)
    """Computed: the warm-up, in sequences; a fraction of the horizon need not be a whole number."""

    override_opt_param_scheduler: bool = False
    """On resume, take the configured schedule, not the stored one."""

    use_checkpoint_opt_param_scheduler: bool = False
    """On resume, take the stored schedule, not the configured one."""

    start_weight_decay: float | None = None
    """Weight decay at the start; None: `optimizer.weight_decay`."""

    end_weight_decay: float | None = None
    """Weight decay at the end, not below the start; None: `optimizer.weight_decay`."""

    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """How the weight decay goes from start to end."""

    no_weight_decay_cond_type: Literal["qwen3_next"] | None = None
    """A special choice of parameters without weight decay. Nothing reads it yet: refused."""

    wd_incr_steps: int | None = field(default=None, init=False, compare=False)
    """Computed: the horizon of the weight decay, in sequences."""

    wsd_decay_steps: int | None = field(default=None, init=False, compare=False)
    """Computed: the last phase of WSD, in sequences."""

    max_steps: int | None = None
    """Horizon in steps of a run that is cut short, so that its schedule is that of the full run."""

    def finalize(self) -> None:
        """Check the section alone. Changes nothing.

        Raises:
            ConfigError: fields that exclude each other (V059 to V063).
        """
        reject({"scheduler": self}, SECTION_RULES)
