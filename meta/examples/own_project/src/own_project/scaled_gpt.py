"""GPT with a learned scale of the embedding."""

from typing import Any

import torch

from mb_models import GPTModelProvider


class ScaledGPTProvider(GPTModelProvider):
    """Builder of GPT chunks whose embedding has a learned scale: one number, which every rank holds."""

    def provide(self, **options: Any) -> Any:
        """Build one chunk; see `mb_models.ModelProvider.provide`."""
        chunk = super().provide(**options)
        if chunk.pre_process:
            embedding = chunk.embedding
            # a parameter of Megatron's module, so that checkpoints and tensor parallelism know it
            embedding.scale = torch.nn.Parameter(
                torch.tensor([self.config.initial_scale], device=self.device)
            )
            # under sequence parallelism each rank scales a part of the sequence: Megatron then sums the gradients
            embedding.scale.sequence_parallel = self.transformer.sequence_parallel
            embedding.register_forward_hook(scaled)
        return chunk


def scaled(embedding: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """Return the output of the embedding, shape [sequence, batch, hidden], multiplied by its scale."""
    return output * embedding.scale
