"""Sequences of the last validation before a checkpoint, for an evaluation in one process. Requires torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mb_data.batch_iterators import BatchSettings
from mb_data.document_parts import document_lengths
from mb_data.errors import ValidationDataError
from mb_data.run_data import RunDatasets
from mb_data.validation_sets import ValidationBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSet:
    """Microbatches of a validation set."""

    name: str
    data: Callable[[], Any]
    """Returns an iterator over the microbatches."""
    microbatches: int
    document_lengths: Callable[[int], Sequence[int] | None]
    """Number of a sequence in the evaluation -> length of the document of each label; None: not known."""


def last_validation(
    datasets: RunDatasets, settings: BatchSettings, *, consumed_samples: int
) -> list[EvaluatedSet]:
    """Return the sets of the last validation of a run. One process.

    Args:
        datasets: Those of the run; complete validation sets are read from their start to their end.
        settings: Batch sizes and seed of the run.
        consumed_samples: Validation samples that the run had consumed after that validation; 0: none, and the first
            validation is returned.

    Raises:
        ValidationDataError: The run has no validation data.
    """
    micro = settings.eval_micro_batch_size or settings.micro_batch_size
    batch = settings.eval_global_batch_size or settings.global_batch_size or micro
    named = datasets.valid_sets or []
    used = 0 if datasets.complete_validation else settings.eval_iters * batch
    start = max(0, consumed_samples - used * (len(named) or 1))
    valid = datasets.loaders(settings).iterators(consumed_valid_samples=start).valid
    if valid is None or (isinstance(valid, list) and not valid):
        raise ValidationDataError(
            "validation: the run has no validation data. Set validation.eval_iters, or dataset.split, in a run that is "
            "to be evaluated."
        )
    stream = [ValidationBatches(data=lambda: valid, batches=settings.eval_iters)]
    found = valid if isinstance(valid, list) else stream
    sources = [each.dataset for each in named] or [datasets.valid]
    first = 0 if datasets.complete_validation else start // len(sources)
    return [
        EvaluatedSet(
            name=each.name,
            data=each.data,
            microbatches=each.batches * (batch // micro),
            document_lengths=partial(_lengths, source, first),
        )
        for each, source in zip(found, sources, strict=True)
    ]


def _lengths(dataset: Any, first: int, number: int) -> list[int] | None:
    return document_lengths(dataset, first + number)
