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
    """Override `build_config_overrides` to give parameters a learning rate or weight decay of their own.

    Megatron does not add its own exceptions to what it is given: start from `super()`.

        class SlowRouter(OptimizerConfigOverrideProvider):
            def build_config_overrides(self, context):
                slow = {ParamKey(name="*.router.weight"): {"max_lr": context.optimizer_config.lr / 10}}
                return {**super().build_config_overrides(context), **slow}
    """

    def build_config_overrides(self, context: OptimizerConfigOverrideProviderContext) -> dict[Any, Any]:
        """Map Megatron's `ParamKey` to its `ParamGroupOverride`.

        Here: no weight decay for biases and parameters of one dimension (with `apply_wd_to_qk_layernorm`, all of these
        but the norms of queries and keys), and `decoupled_lr` for embedding and output layer. Needs Megatron Core.
        """
        from mb_config.mcore import standard_overrides  # noqa: PLC0415 - Megatron, when its optimizer is built

        return standard_overrides(context.optimizer_config)
