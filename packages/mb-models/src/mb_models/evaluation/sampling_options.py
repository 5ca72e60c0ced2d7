"""Choice of the next token: greedy, or sampled from the most likely ones. Requires torch.

Shapes: B sequences, V entries of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mb_models.errors import ModelsError


class SamplingOptionError(ModelsError, ValueError):
    """An option of the generation of text that is unknown, or has a wrong value."""

    bad_input = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How the next token is chosen.

    Raises:
        SamplingOptionError: a value is out of its range.
    """

    max_new_tokens: int
    temperature: float = 0.0
    """Divisor of the logits; 0 selects the most likely token."""
    top_k: int = 0
    """Number of most likely tokens to sample from, and those as likely as the last of them; 0: all."""
    top_p: float = 1.0
    """Sample from the most likely tokens that together reach this probability."""

    def __post_init__(self) -> None:
        ranges = {
            "max_new_tokens": (self.max_new_tokens >= 0, "0 or more"),
            "temperature": (self.temperature >= 0, "0 or more"),
            "top_k": (self.top_k >= 0, "0 or more"),
            "top_p": (0 < self.top_p <= 1, "above 0, and at most 1"),
        }
        for name, (valid, range_) in ranges.items():
            if not valid:
                raise SamplingOptionError(
                    f"generation_kwargs.{name}: must be {range_} ({getattr(self, name)}). Correct it in the task."
                )


def sample_tokens(
    logits_BV: torch.Tensor, options: Sequence[SamplingOptions], generators: Sequence[torch.Generator]
) -> list[int]:
    """Return the next token of each sequence; each has options and a random generator, on the CPU like the logits."""
    return [_sample(*row) for row in zip(logits_BV, options, generators, strict=True)]


def _sample(logits_V: torch.Tensor, options: SamplingOptions, generator: torch.Generator) -> int:
    if options.temperature == 0:
        return int(logits_V.argmax())
    scaled, order = (logits_V / options.temperature).sort(descending=True)
    if options.top_k:
        kept = scaled >= scaled[: options.top_k][-1]  # with ties, as in transformers
        scaled, order = scaled[kept], order[kept]
    probabilities = torch.softmax(scaled, dim=-1)
    # Before each token, so that the first one always remains.
    reached = probabilities.cumsum(-1) - probabilities
    probabilities[reached >= options.top_p] = 0.0
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])
