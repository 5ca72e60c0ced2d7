"""Validation sets, read completely or as streams, one per name, with the same number and names on all ranks."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mb_data.collectives import Gather, gather_from_all_ranks
from mb_data.config import GPTDatasetConfig
from mb_data.dataset_provider import DatasetBuildContext, DatasetProvider
from mb_data.errors import NotEnoughSamplesError, ValidationDataError
from mb_data.validation_rules import last_parts, validation_prefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSetOptions:
    """Division of the validation data into sets. By default it is one endless stream."""

    complete: bool = False
    """Read each set from its start to its end in every evaluation."""

    several: bool = False
    """Make a set of each prefix of the validation data, or of each dataset that a provider returns."""

    names: Sequence[str] | None = None
    """One name for each set; None: the last parts of the prefixes, or else numbers."""

    @property
    def has_sets(self) -> bool:
        """True if there are sets, instead of one endless stream."""
        return self.complete or self.several


ONE_STREAM = ValidationSetOptions()
"""Validation data without sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDataset:
    """Validation dataset; None on ranks that read no data, and for absent data."""

    name: str
    dataset: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationBatches:
    """Batches of a validation set."""

    data: Callable[[], Any]
    """Called at the start of an evaluation; returns the iterator (or list, or None) to read. A complete set has a new
    iterator in each evaluation; a stream continues at its position."""

    batches: int
    """Global batches per evaluation; identical on all ranks."""

    name: str = ""
    """Name of the set; empty if there is only one."""


def build_validation_sets(
    section: DatasetProvider,
    context: DatasetBuildContext,
    options: ValidationSetOptions,
    *,
    gather: Gather = gather_from_all_ranks,
) -> list[NamedDataset]:
    """Build the validation sets. Collective over the world; number and names are identical on all ranks.

    Args:
        section: The dataset section, finalized; not modified.
        context: Its `valid_samples` apply to each set that is no complete one. 0: there is no evaluation, hence no set.
        options: Division into sets.
        gather: All-gather of one value per rank.

    Raises:
        ValidationDataError: On all ranks, the numbers of sets and names differ, a provider returned one set instead of
            several, or the ranks built different numbers of sets.
    """
    if not context.valid_samples:
        return []
    validation_only = replace(context, train_samples=0, test_samples=0, complete_validation=options.complete)
    prefixes = _prefixes(section) if options.several else []
    built = []
    for each in [_with_one_prefix(section, prefix) for prefix in prefixes] or [copy.copy(section)]:
        if isinstance(each, GPTDatasetConfig):
            each.full_validation = options.complete
        built.append(each.build_datasets(validation_only)[1])
    if not prefixes:
        built = _same_number_on_all_ranks(built[0], section, several=options.several, gather=gather)
    names = _names(options, prefixes, number=len(built))
    return [NamedDataset(name=name, dataset=dataset) for name, dataset in zip(names, built, strict=True)]


def validation_batches(
    sets: Sequence[NamedDataset],
    *,
    iterate: Callable[..., Any],
    batch_samples: int,
    consumed_samples: int,
    eval_iters: int | None,
    gather: Gather = gather_from_all_ranks,
) -> list[ValidationBatches]:
    """Return the batches of each set; empty without validation data. Collective over the world.

    Args:
        sets: Built on each rank, in the same order.
        iterate: Returns an iterator over a dataset from `consumed_samples` on.
        batch_samples: Sequences of one evaluation batch. The rest of a complete set after its full batches is not read.
        consumed_samples: Validation samples read before, over all sets.
        eval_iters: Batches of each set in one evaluation, which continues where the previous one ended; None: complete
            sets, from their start each time, and of known lengths.
        gather: All-gather of one value per rank.

    Raises:
        NotEnoughSamplesError: On all ranks, a complete set fills no batch.
    """
    sizes_by_rank = gather([_size(each.dataset, complete=eval_iters is None) for each in sets])
    sizes = [
        next((size for size in column if size is not None), None)
        for column in zip(*sizes_by_rank, strict=True)
    ]
    present = [(each, size) for each, size in zip(sets, sizes, strict=True) if size is not None]
    found = []
    for each, size in present:
        data: Callable[[], Any]
        if eval_iters is None:
            data, number = partial(iterate, each.dataset, consumed_samples=0), size // batch_samples
        else:
            consumed = consumed_samples // len(present)
            data, number = _stream(iterate(each.dataset, consumed_samples=consumed)), eval_iters
        if number == 0 and eval_iters is None:
            raise NotEnoughSamplesError(
                f"validation.full_validation: the set {each.name or 'of this run'} has {size} sequences, fewer than "
                f"one batch of {batch_samples}. Lower validation.eval_global_batch_size, or give more data."
            )
        found.append(ValidationBatches(data=data, batches=number, name=each.name))
    return found


def stream_batches(iterator: Any, *, batches: int) -> list[ValidationBatches]:
    """Return an iterator as a single set of `batches` batches per evaluation, which continues at its position."""
    return [ValidationBatches(data=_stream(iterator), batches=batches)]


def _stream(iterator: Any) -> Callable[[], Any]:
    return lambda: iterator


def _prefixes(section: Any) -> list[str]:
    """Return the prefixes of the validation data; none if data is not read from prefixes."""
    if not isinstance(section, GPTDatasetConfig):
        return []
    return validation_prefixes(section.blend, section.data_path, section.blend_per_split)


def _with_one_prefix(section: Any, prefix: str) -> Any:
    """Return a copy of a section with this prefix as its only validation data."""
    reduced = copy.copy(section)
    if section.blend_per_split is None:
        reduced.blend = ([prefix], None)
    else:
        reduced.blend_per_split = [None, ([prefix], None), None]
    return reduced


def _names(options: ValidationSetOptions, prefixes: Sequence[str], *, number: int) -> Sequence[str]:
    names = options.names
    if names is None:
        return last_parts(prefixes) or ([""] if number == 1 else [str(index) for index in range(number)])
    if len(names) != number:
        raise ValidationDataError(
            f"validation.validation_set_names: names {len(names)} sets ({', '.join(names)}), but there are {number}"
            f"{': ' + ', '.join(prefixes) if prefixes else ''}. Give one name for each, in this order."
        )
    return names


def _same_number_on_all_ranks(built: Any, section: object, *, several: bool, gather: Gather) -> list[Any]:
    """Return this rank's result as a list of the same length on all ranks, filled with None where it has no data."""
    is_list, kind = isinstance(built, list), type(section).__name__
    shapes_by_rank = gather(None if built is None else len(built) if is_list else type(built).__name__)
    shapes = {
        shape if isinstance(shape, int) else None: shape for shape in shapes_by_rank if shape is not None
    }
    if len(shapes) > 1:
        raise ValidationDataError(
            f"dataset: {kind} returned one validation set or a list on some ranks and another number "
            f"on others (by rank: {shapes_by_rank}), so that they would evaluate different things. Return as many on "
            "each rank that reads data, and None on the others."
        )
    shape = next(iter(shapes.values()), None)
    if isinstance(shape, str) and several:
        raise ValidationDataError(
            f"validation.multiple_validation_sets: {kind} returned one {shape} as its "
            "validation data, and only a list is taken for several sets. Return a list, or leave it off."
        )
    if is_list:
        return list(built)
    return [built] * (shape if isinstance(shape, int) else 1)


def _size(dataset: Any, *, complete: bool) -> int | None:
    """Return the length of a dataset that is read completely, otherwise 0; None if there is none."""
    if dataset is None:
        return None
    return len(dataset) if complete else 0
