"""Log-likelihoods and continuations of sequences of tokens, in batches of sequences of similar length. Requires torch.

Shapes: B sequences, S tokens, N scored tokens of all sequences, V entries of the vocabulary.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from mb_models.errors import ModelsError
from mb_models.evaluation.generation import PromptError
from mb_models.evaluation.sampling_options import SamplingOptions, sample_tokens

Tokens = Sequence[int]
LogitsFunction = Callable[[torch.Tensor], torch.Tensor]
"""Tokens [B, S] -> logits [B, S, at least V], for a causal model: padding on the right changes nothing before it."""

_ROWS = 1024
"""Rows of logits that are converted to float32 at a time."""


class ScoreError(ModelsError, ValueError):
    """A text whose log-likelihood cannot be computed."""


class Score(NamedTuple):
    """Log-likelihood of a continuation."""

    log_likelihood: float
    """Sum over its tokens, in nats."""
    is_greedy: bool
    """Whether each of its tokens is the most likely one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """Prompt to continue."""

    prompt: Tokens
    options: SamplingOptions
    is_complete: Callable[[list[int]], bool] = field(default=lambda _tokens: False)
    """Called with the generated tokens after each; True ends the text."""
    stream: int | None = None
    """Number of its random stream, for a text that does not depend on the others; None: the position among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedModel:
    """Causal language model for scoring and generation. Every rank calls the same methods with the same arguments."""

    logits: LogitsFunction
    vocab_size: int
    """Entries of the tokenizer: logits beyond them belong to padding of the embedding and are left out."""
    context_length: int
    batch_size: int = 16
    """Sequences of a batch at most."""
    device: torch.device = field(default=torch.device("cpu"))
    replicas: torch.distributed.ProcessGroup | None = None
    """Group of the data-parallel replicas, which share the sequences: each returns all results; None: there is one."""

    @classmethod
    def of(
        cls, model: torch.nn.Module, *, vocab_size: int, context_length: int, batch_size: int
    ) -> "BatchedModel":
        """Return a model that is called with tokens, positions and no mask, such as `generation.all_logits` returns."""

        def logits(tokens_BS: torch.Tensor) -> torch.Tensor:
            positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device).expand_as(tokens_BS)
            logits_BSV: torch.Tensor = model(tokens_BS, positions_BS, None)
            return logits_BSV

        return cls(
            logits=logits,
            vocab_size=vocab_size,
            context_length=context_length,
            batch_size=batch_size,
            device=next(model.parameters()).device,
        )

    def require_scorable(self, context: Tokens, continuation: Tokens, *, text: str) -> None:
        """Reject what has no log-likelihood; `text` is named in the message.

        Raises:
            ScoreError: the context or the continuation has no tokens, or the continuation is longer than the context
                length.
        """
        if not context or not continuation:
            part = "continuation" if context else "context"
            raise ScoreError(
                f"{text!r}: its {part} has no tokens of its own, so that it has no probability. Change the spaces "
                "between context and continuation in the task."
            )
        if len(continuation) > self.context_length:
            raise ScoreError(
                f"{text[:60]!r}...: has {len(continuation):,} tokens, more than the context of the model "
                f"({self.context_length:,}). Shorten it, or use output_type: loglikelihood_rolling."
            )

    @torch.no_grad()
    def score(
        self,
        pairs: Sequence[tuple[Tokens, Tokens]],
        *,
        progress: Callable[[int], object] = lambda _count: None,
    ) -> list[Score]:
        """Return the log-likelihood of each continuation after its context.

        A context that is too long is cut on the left. Sequences that are equal up to their last token share one row,
        such as the choices of a question that have one token each.

        Args:
            pairs: context and continuation, which `require_scorable` accepts.
            progress: called with the number of pairs of each batch.
        """
        numbers: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, (context, continuation) in enumerate(pairs):
            numbers[(*context, *continuation)[-self.context_length - 1 : -1]].append(number)
        scores: dict[int, Score] = {}
        for inputs in self._batches(sorted(numbers, key=lambda tokens: (-len(tokens), tokens))):
            spans = [
                (row, len(tokens), number) for row, tokens in enumerate(inputs) for number in numbers[tokens]
            ]
            scores |= self._score_batch(inputs, spans, [pairs[number][1] for _, _, number in spans])
            progress(len(spans))
        return self._in_order(scores)

    @torch.no_grad()
    def continue_texts(
        self,
        requests: Sequence[TextRequest],
        *,
        seed: int = 1234,
        progress: Callable[[int], object] = lambda _count: None,
    ) -> list[list[int]]:
        """Return the generated tokens of each request. Every token costs a forward pass, without a key-value cache.

        Raises:
            PromptError: a prompt has no tokens.
        """
        if not all(request.prompt for request in requests):
            raise PromptError(
                "prompt: has no tokens, because its text is empty. Begin the prompt of the task with a text, or set "
                "--bos where the tokenizer has a beginning-of-sequence token."
            )
        texts: dict[int, list[int]] = {}
        streams = [at if each.stream is None else each.stream for at, each in enumerate(requests)]
        by_length = sorted(range(len(requests)), key=lambda number: -len(requests[number].prompt))
        for batch in self._batches(by_length):
            texts |= {number: [] for number in batch}
            generators = {number: torch.Generator().manual_seed(seed + streams[number]) for number in batch}
            active = [number for number in batch if requests[number].options.max_new_tokens]
            while active:
                windows = [
                    [*requests[number].prompt, *texts[number]][-self.context_length :] for number in active
                ]
                options = [requests[number].options for number in active]
                chosen = sample_tokens(
                    self._next_logits(windows), options, [generators[number] for number in active]
                )
                for number, token in zip(active, chosen, strict=True):
                    texts[number].append(token)
                active = [number for number in active if not _is_finished(requests[number], texts[number])]
            progress(len(batch))
        return self._in_order(texts)

    def _batches(self, items: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield the batches of this replica."""
        if self.replicas is not None:
            items = items[self.replicas.rank() :: self.replicas.size()]
        for start in range(0, len(items), self.batch_size):
            yield items[start : start + self.batch_size]

    def _in_order(self, results: dict[int, Any]) -> list[Any]:
        """Return the results of all replicas by their number. Collective over the replicas."""
        if self.replicas is not None:
            parts: list[Any] = [None] * self.replicas.size()
            torch.distributed.all_gather_object(parts, results, group=self.replicas)
            results = {number: result for part in parts for number, result in part.items()}
        return [results[number] for number in range(len(results))]

    def _forward(self, inputs: Sequence[Tokens]) -> torch.Tensor:
        """Return the logits [B, S, V] of sequences, padded on the right."""
        longest = max(map(len, inputs))
        padded = [[*tokens, *[0] * (longest - len(tokens))] for tokens in inputs]
        return self.logits(torch.tensor(padded, device=self.device))[..., : self.vocab_size]

    def _next_logits(self, windows: Sequence[Tokens]) -> torch.Tensor:
        last = [len(window) - 1 for window in windows]
        return self._forward(windows)[range(len(windows)), last].float().cpu()

    def _score_batch(
        self, inputs: Sequence[Tokens], spans: Sequence[tuple[int, int, int]], targets: Sequence[Tokens]
    ) -> dict[int, Score]:
        """Score targets, each of which ends at the end of its row."""
        logits_BSV = self._forward(inputs)
        rows: list[int] = []
        positions: list[int] = []
        flat: list[int] = []
        for (row, end, _), target in zip(spans, targets, strict=True):
            rows += [row] * len(target)
            positions += range(end - len(target), end)
            flat += target
        rows_N, positions_N, targets_N = (
            torch.tensor(values, device=logits_BSV.device) for values in (rows, positions, flat)
        )
        log_probability_parts, greedy = [], []
        for part in torch.split(torch.arange(len(flat), device=logits_BSV.device), _ROWS):
            logits_NV = logits_BSV[rows_N[part], positions_N[part]].float()
            target_N1 = targets_N[part, None]
            log_probabilities = logits_NV.gather(1, target_N1)[:, 0] - logits_NV.logsumexp(1)
            log_probability_parts.append(log_probabilities.double())
            greedy.append(logits_NV.argmax(1) == target_N1[:, 0])
        values, equal = torch.cat(log_probability_parts).tolist(), torch.cat(greedy).tolist()
        scores, start = {}, 0
        for (_, _, number), target in zip(spans, targets, strict=True):
            end = start + len(target)
            scores[number] = Score(sum(values[start:end]), all(equal[start:end]))
            start = end
        return scores


def _is_finished(request: TextRequest, text: list[int]) -> bool:
    return len(text) >= request.options.max_new_tokens or request.is_complete(text)
