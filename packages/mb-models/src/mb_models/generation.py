"""Text from a trained GPT, token by token, without a key-value cache: small models, a look at what was learned.

Shapes: S tokens so far, V rows of the embedding.
"""

from collections.abc import Iterator, Sequence

import torch


class PromptError(ValueError):
    """A prompt that nothing can follow."""


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
    """Yield up to `max_new_tokens` tokens that follow the prompt, and end early at `stop_token`, which is not yielded.

    Every token costs a forward pass over the last `context_length` tokens. The model is one whole chunk (no pipeline,
    no tensor parallelism) in evaluation mode; synchronises with the device once a token.

    Args:
        model: takes (tokens, position_ids, attention_mask=None), each [1, S], and returns logits [1, S, V].
        prompt: token numbers, at least one.
        max_new_tokens: upper bound on what is yielded.
        vocab_size: tokens that the tokenizer knows; rows of the embedding beyond are padding and never chosen.
        context_length: longest input the model was trained for.
        temperature: logits are divided by it before a token is drawn; 0 takes the likeliest.
        stop_token: ends the text, None for no such token.
        generator: random numbers for the draw, on the CPU.

    Raises:
        PromptError: the prompt is empty.
    """
    if not prompt:
        raise PromptError(
            "prompt: is empty, because the first token has to follow something. Give at least one token."
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
    chances_V = torch.softmax(logits_V / temperature, dim=-1)
    return int(torch.multinomial(chances_V, 1, generator=generator))
