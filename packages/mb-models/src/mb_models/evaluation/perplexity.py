"""Perplexity of a model on batches, in total and by the length of the documents. Requires torch."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import torch

BOUNDS = (128, 512, 2048, 8192)
"""Lengths in tokens at which the next bucket of documents begins."""
DocumentLengths = Callable[[int], Sequence[int] | None]
"""Number of a sequence in the evaluation -> length of the document of each label; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """Mean loss of the tokens of a set, or of a bucket of documents."""

    name: str
    tokens: int
    loss_sum: float
    buckets: tuple["Perplexity", ...] = field(default=())
    """The same tokens by the length of their document; empty if it is not known."""

    @property
    def loss(self) -> float:
        """Mean loss in nats; NaN without tokens."""
        return self.loss_sum / self.tokens if self.tokens else math.nan

    @property
    def value(self) -> float:
        """Perplexity: exp of the loss."""
        return math.exp(min(self.loss, 700.0))

    def as_dict(self) -> dict[str, Any]:
        """Return name, tokens, loss, perplexity and buckets as builtins; loss and perplexity None without tokens."""
        values: dict[str, Any] = {
            "name": self.name,
            "tokens": self.tokens,
            "loss": self.loss if self.tokens else None,
            "perplexity": self.value if self.tokens else None,
        }
        return (
            {**values, "buckets": [bucket.as_dict() for bucket in self.buckets]} if self.buckets else values
        )


@torch.no_grad()
def measure_perplexity(
    forward_step: Callable[..., Any],
    model: torch.nn.Module,
    batches: Iterator[Mapping[str, torch.Tensor]],
    *,
    microbatches: int,
    name: str = "",
    lengths: DocumentLengths = lambda _number: None,
    bounds: Sequence[int] = BOUNDS,
) -> Perplexity:
    """Return the perplexity over the next microbatches. One process with the whole model, in evaluation mode.

    The loss is that of the forward step, so that a validation in training reports the same one.

    Args:
        forward_step: as in training; its output is the loss of each token, shape [B, S].
        model: the model.
        batches: microbatches; `loss_mask` selects the tokens that count.
        microbatches: number of microbatches to read.
        name: name of the set.
        lengths: length of the document of each label of a sequence.
        bounds: limits of the buckets.
    """
    edges = [0, *bounds, math.inf]
    sums = torch.zeros(len(edges) - 1, 2, dtype=torch.float64)
    total, tokens, sequences, has_lengths = 0.0, 0, 0, True
    for _ in range(microbatches):
        batch = next(batches)
        output, loss_function = forward_step(iter([batch]), model)
        _, _, logged = loss_function(output)
        loss_sum, count = next(iter(logged.values())).tolist()
        total, tokens = total + loss_sum, tokens + round(count)
        document_lengths = [lengths(sequences + row) for row in range(len(output))]
        sequences += len(output)
        length = output.shape[1]
        has_lengths = has_lengths and all(row is not None and len(row) <= length for row in document_lengths)
        if has_lengths:
            # A sequence that is shorter than the others is padded; its padding is not in the mask.
            by_length = torch.tensor(
                [[*row, *[0] * (length - len(row))] for row in document_lengths if row is not None]
            )
            mask = batch["loss_mask"].to(output.device)
            for bucket, (low, high) in enumerate(pairwise(edges)):
                chosen = mask * ((by_length >= low) & (by_length < high)).to(mask)
                sums[bucket] += torch.stack([(output.float() * chosen).sum(), chosen.sum()]).double().cpu()
    buckets = [
        Perplexity(name=_bucket(low, high), tokens=int(count), loss_sum=float(value))
        for (low, high), (value, count) in zip(pairwise(edges), sums.tolist(), strict=True)
        if count
    ]
    return Perplexity(name=name, tokens=tokens, loss_sum=total, buckets=tuple(buckets) if has_lengths else ())


class SequenceSet(Protocol):
    """Microbatches of a validation set; `mb_data.loading.last_validation.EvaluatedSet` matches."""

    @property
    def name(self) -> str:
        """Name of the set; empty if there is only one."""

    @property
    def data(self) -> Callable[[], Any]:
        """Returns an iterator over the microbatches."""

    @property
    def microbatches(self) -> int:
        """Number of microbatches to read."""

    @property
    def document_lengths(self) -> DocumentLengths:
        """Length of the document of each label of a sequence."""


def measure_sets(
    forward_step: Callable[..., Any], model: torch.nn.Module, sets: Sequence[SequenceSet]
) -> list[Perplexity]:
    """Return the perplexity on each set, as `measure_perplexity`."""
    return [
        measure_perplexity(
            forward_step,
            model,
            iter(text_set.data()),
            microbatches=text_set.microbatches,
            name=text_set.name,
            lengths=text_set.document_lengths,
        )
        for text_set in sets
    ]


def _bucket(low: float, high: float) -> str:
    return f"{low} tokens and more" if math.isinf(high) else f"{low} to {high - 1} tokens"
