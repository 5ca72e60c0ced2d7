"""Section of the model: Megatron Core's GPT, whose embedding has a learned scale. Imports Megatron when it is built."""

from dataclasses import dataclass
from typing import Any

from mb_models import GPTModelConfig


@dataclass(kw_only=True)
class ScaledGPTConfig(GPTModelConfig):
    """GPT with a learned factor on the output of its embedding."""

    initial_scale: float = 1.0
    """Factor at the start of training."""

    def model_family(self) -> Any:
        """Return how this model is built: as a GPT, by another provider, with its parameters counted when built."""
        from dataclasses import replace

        from mb_models.families import GPT
        from own_project.scaled_gpt import ScaledGPTProvider

        return replace(GPT, provider=ScaledGPTProvider, parameters=None)
