"""Overrides of learning rate and weight decay for individual parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mb_config.container.section import Section
from mb_config.sections.optimizer import OptimizerConfig
from mb_config.sections.scheduler import SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfigOverrideProviderContext:
    """Inputs of a provider."""

    scheduler_config: SchedulerConfig
    """The scheduler section."""

    optimizer_config: OptimizerConfig
    """The optimizer section."""

    model: Any
    """The model, or the list of its chunks on this pipeline stage."""


@dataclass(kw_only=True)
class OptimizerConfigOverrideProvider(Section):
    """Provider of learning rates and weight decays for individual parameters. Override `build_config_overrides`.

    Start from `super()`, because Megatron does not add its standard overrides to the returned ones.

        class SlowRouter(OptimizerConfigOverrideProvider):
            def build_config_overrides(self, context):
                slow = {ParamKey(name="*.router.weight"): {"max_lr": context.optimizer_config.lr / 10}}
                return {**super().build_config_overrides(context), **slow}
    """

    def build_config_overrides(self, context: OptimizerConfigOverrideProviderContext) -> dict[Any, Any]:
        """Return Megatron's `ParamKey` to `ParamGroupOverride`.

        The default is no weight decay for biases and 1-D parameters (except the norms of queries and keys with
        `apply_wd_to_qk_layernorm`), and `decoupled_lr` for the embedding and the output layer. Requires Megatron Core.
        """
        from mb_config.mcore import standard_overrides  # noqa: PLC0415 - imports Megatron

        return standard_overrides(context.optimizer_config)
