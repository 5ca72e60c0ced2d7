"""Text generation from a trained GPT without a key-value cache, for small models and quick inspection.

Shapes: B sequences, S tokens so far, V rows of the embedding.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from mb_models.errors import ModelsError


class PromptError(ModelsError, ValueError):
    """A prompt that cannot be continued."""


class AllLogits(torch.nn.Module):
    """Model whose logits of all tensor-parallel ranks are gathered on each rank."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BS: torch.Tensor, positions_BS: torch.Tensor, mask: torch.Tensor | None) -> Any:
        """Return logits [B, S, V]."""
        return self.model(tokens_BS, positions_BS, mask, runtime_gather_output=True)


def all_logits(model: Any) -> torch.nn.Module:
    """Return a chunk of Megatron Core with the output layer as a model that returns the logits of the vocabulary."""
    with_all_logits: torch.nn.Module = (
        model if model.config.tensor_model_parallel_size == 1 else AllLogits(model)
    )
    return with_all_logits


def generate(
    model: torch.nn.Module,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    vocab_size: int,
    context_length: int,
    temperature: float = 1.0,
    stop_token: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Yield up to `max_new_tokens` tokens that follow the prompt; end early at `stop_token`, which is not yielded.

    Every token costs a forward pass over the last `context_length` tokens. The model is one complete chunk (no
    pipeline) in evaluation mode; synchronises with the device once per token.

    Args:
        model: takes (tokens, position_ids, attention_mask=None), each [1, S], and returns logits [1, S, V]; under
            tensor parallelism `all_logits(model)`, and every rank calls this function with an equal generator.
        prompt: token numbers, at least one.
        max_new_tokens: maximum number of yielded tokens.
        vocab_size: size of the tokenizer's vocabulary; rows of the embedding beyond it are padding and never sampled.
        context_length: maximum input length that the model was trained for.
        temperature: divisor of the logits before sampling; 0 selects the most likely token.
        stop_token: token that ends the text; None: no such token.
        generator: random number generator for sampling, on the CPU.

    Raises:
        PromptError: the prompt is empty.
    """
    if not prompt:
        raise PromptError(
            "prompt: is empty, because the first token is predicted from a previous one. Pass at least one token."
        )
    tokens = list(prompt)
    device = next(model.parameters()).device
    for _ in range(max_new_tokens):
        window_1S = torch.tensor([tokens[-context_length:]], device=device)
        positions_1S = torch.arange(window_1S.shape[1], device=device)[None]
        with torch.no_grad():
            logits_1SV = model(window_1S, positions_1S, None)
        token = _sample_token(
            logits_1SV[0, -1, :vocab_size].float().cpu(), temperature=temperature, generator=generator
        )
        if token == stop_token:
            return
        tokens.append(token)
        yield token


def _sample_token(logits_V: torch.Tensor, *, temperature: float, generator: torch.Generator | None) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    probabilities_V = torch.softmax(logits_V / temperature, dim=-1)
    return int(torch.multinomial(probabilities_V, 1, generator=generator))
