"""Captions from a vision-language model, token by token, for quick inspection.

Shapes: S tokens so far, V rows of the embedding, H pixels of an image's height and width.
"""

from collections.abc import Iterator

import torch

from mb_models.evaluation.generation import generate
from mb_models.mimo.config import MimoModelConfig
from mb_models.mimo.provider import ENCODER, VISION


class ImageConditionedModel(torch.nn.Module):
    """A model with one image in its prompt, with the interface of a language model for `generate`."""

    def __init__(self, model: torch.nn.Module, image_13HH: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self._image_13HH = image_13HH

    def forward(
        self,
        tokens_1S: torch.Tensor,
        positions_1S: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the logits, [1, S, V]."""
        inputs = {VISION: {ENCODER: {"x": self._image_13HH}}}
        logits_1SV: torch.Tensor
        logits_1SV, _ = self.model(tokens_1S, positions_1S, attention_mask, modality_inputs=inputs)
        return logits_1SV


def caption(
    model: torch.nn.Module,
    image_3HH: torch.Tensor,
    *,
    config: MimoModelConfig,
    vocab_size: int,
    temperature: float = 0.0,
    stop_token: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Yield the tokens that follow an image, up to `stop_token` or the sequence length of training.

    The model is one complete chunk (no tensor parallelism) in evaluation mode. Every token costs a forward pass,
    encoder included.

    Args:
        model: model from `MimoModelProvider`.
        image_3HH: the image, with values from -1 to 1 as in training.
        config: the section that the model was built from.
        vocab_size: size of the tokenizer's vocabulary.
        temperature: as in `generate`; 0 selects the most likely token.
        stop_token: token that ends the caption; None: no such token.
        generator: random number generator for sampling, on the CPU.
    """
    weight = next(model.parameters())
    return generate(
        ImageConditionedModel(model, image_3HH[None].to(weight.device, weight.dtype)),
        [config.image_token_id] * config.image_tokens,
        max_new_tokens=config.seq_length - config.image_tokens,
        vocab_size=vocab_size,
        context_length=config.seq_length,
        temperature=temperature,
        stop_token=stop_token,
        generator=generator,
    )
