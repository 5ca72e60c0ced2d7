"""Sequences of the last validation before a checkpoint, for an evaluation in one process. Requires torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from mb_data.config import GPTDatasetConfig
from mb_data.dataset_provider import DatasetProvider
from mb_data.errors import ValidationDataError
from mb_data.fim.config import FillInTheMiddleOptions
from mb_data.loading.batch_iterators import BatchSettings
from mb_data.loading.document_parts import document_lengths
from mb_data.loading.loaders import rank_sampler
from mb_data.loading.validation_sets import ValidationBatches, WholeBatches
from mb_data.run_data import RunDatasets
from mb_data.t5.config import SpanCorruptionOptions


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
    if datasets.complete_validation:  # the last batch is filled; here with less than a microbatch
        batch, settings = micro, replace(settings, eval_global_batch_size=micro)
    named = datasets.valid_sets or []
    used = 0 if datasets.complete_validation else settings.eval_iters * batch
    start = max(0, consumed_samples - used * (len(named) or 1))
    valid = datasets.loaders(settings).iterators(consumed_valid_samples=start).valid
    if valid is None or (isinstance(valid, list) and not valid):
        raise ValidationDataError(
            "validation: the run has no validation data. Set validation.eval_iters, or dataset.split, in a run that is "
            "to be evaluated."
        )
    stream = [ValidationBatches.of_stream(valid, batches=settings.eval_iters)]
    sets = valid if isinstance(valid, list) else stream
    sources = [validation_set.dataset for validation_set in named] or [datasets.valid]
    first = 0 if datasets.complete_validation else start // len(sources)
    result = []
    for of_set, source in zip(sets, sources, strict=True):
        microbatches = of_set.batches * (batch // micro)
        order: list[int] = []
        if datasets.section.dataloader_type != "external":
            sampler = rank_sampler(
                datasets.section,
                WholeBatches(source, batch) if datasets.complete_validation else source,
                seed=settings.seed,
                global_batch_size=batch,
                repeats=not datasets.complete_validation,
                consumed_samples=first,
                micro_batch_size=micro,
                data_parallel_rank=0,
                data_parallel_size=1,
            )
            order = list(islice(chain.from_iterable(sampler), microbatches * micro))
        result.append(
            EvaluatedSet(
                name=of_set.name,
                data=of_set.data,
                microbatches=microbatches,
                document_lengths=partial(_lengths, source, order),
            )
        )
    return result


def keep_partial_sequence(section: DatasetProvider) -> None:
    """Set a section to read also the tokens after the last complete sequence, where its kind of data allows it."""
    rewritten = isinstance(section, FillInTheMiddleOptions | SpanCorruptionOptions)
    if isinstance(section, GPTDatasetConfig) and not rewritten:
        section.drop_last_partial_validation_sequence = False


def _lengths(dataset: Any, order: Sequence[int], number: int) -> list[int] | None:
    """Return the document lengths of a sequence of an evaluation; of the last one for what fills the last batch."""
    return document_lengths(dataset, min(order[number], len(dataset) - 1)) if order else None
