"""Which parameters get a learning rate or weight decay of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mb_config.section import Section
from mb_config.sections.optimizer import OptimizerConfig
from mb_config.sections.scheduler import SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfigOverrideProviderContext:
    """What a provider may look at."""

    scheduler_config: SchedulerConfig
    """The schedule."""

    optimizer_config: OptimizerConfig
    """The optimizer's section."""

    model: Any
    """The model, or the list of its chunks on this pipeline stage."""


@dataclass(kw_only=True)
class OptimizerConfigOverrideProvider(Section):
    """Override `build_config_overrides` to give parameters a learning rate or weight decay of their own."""

    def build_config_overrides(
        self, context: OptimizerConfigOverrideProviderContext
    ) -> dict[Any, Any] | None:
        """Map Megatron's `ParamKey` to its `ParamGroupOverride`; None: Megatron's own default.

        That default is no weight decay for biases and parameters of one dimension.
        """
        return None
