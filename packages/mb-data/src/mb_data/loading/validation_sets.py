"""Validation sets, read completely or as streams, one per name, with the same number and names on all ranks."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from mb_data.collectives import Gather, gather_from_all_ranks
from mb_data.config import GPTDatasetConfig
from mb_data.dataset_provider import DatasetBuildContext, DatasetProvider
from mb_data.errors import NotEnoughSamplesError, ValidationDataError
from mb_data.loading.validation_rules import last_parts, validation_prefixes


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

    @classmethod
    def of_stream(cls, iterator: Any, *, batches: int, name: str = "") -> "ValidationBatches":
        """Return a set of `batches` batches per evaluation, which continues at the position of the iterator."""
        return cls(data=lambda: iterator, batches=batches, name=name)


class WholeBatches:
    """Map-style dataset whose length is a multiple of a batch: its samples, then copies of the last one.

    The copies have a `loss_mask` of zeros. Each rank therefore reads the same number of microbatches, and the sums of
    losses and of tokens over all ranks are those of the samples, for any batch size and any number of ranks.

    Args:
        dataset: At least one sample. Its methods `collate` and `length` are used, if it has them.
        batch_samples: Divisor of the length.
    """

    def __init__(self, dataset: Any, batch_samples: int) -> None:
        self.dataset, self._size = dataset, -(-len(dataset) // batch_samples) * batch_samples
        if hasattr(dataset, "collate"):
            self.collate = dataset.collate
        if hasattr(dataset, "length"):
            self.length = self._length

    def __len__(self) -> int:
        return self._size

    def sample(self, index: int) -> int:
        """Return the index of a sample in the dataset; of the last one for its copies."""
        return min(index, len(self.dataset) - 1)

    def _length(self, index: int) -> int:
        length: int = self.dataset.length(self.sample(index))
        return length

    def __getitem__(self, index: int) -> Any:
        """Return the sample at an index."""
        if not 0 <= index < self._size:
            raise IndexError(index)
        sample = self.dataset[self.sample(index)]
        if index < len(self.dataset):
            return sample
        return {**sample, "loss_mask": torch.zeros_like(sample["loss_mask"])}


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
        context: Its `valid_samples` apply to each set that is not complete. 0: there is no evaluation, hence no set.
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
    for reduced in [_with_one_prefix(section, prefix) for prefix in prefixes] or [copy.copy(section)]:
        if isinstance(reduced, GPTDatasetConfig):
            reduced.full_validation = options.complete
        built.append(reduced.build_datasets(validation_only)[1])
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
        iterate: Returns an iterator over a dataset from `consumed_samples` on; with `repeats`, without an end.
        batch_samples: Sequences of one evaluation batch. The last batch of a complete set is filled by `WholeBatches`.
        consumed_samples: Validation samples read before, over all sets.
        eval_iters: Batches of each set in one evaluation, which continues where the previous one ended; None: complete
            sets, from their start each time, and of known lengths.
        gather: All-gather of one value per rank.

    Raises:
        NotEnoughSamplesError: On all ranks, a complete set is empty.
        ValidationDataError: On all ranks, the last batch of a complete set is incomplete, and its samples have no
            `loss_mask`.
    """
    own_sizes = [
        None if named.dataset is None else _size(named.dataset, batch_samples, eval_iters) for named in sets
    ]
    # A rank that reads no data learns the sizes from one that does, so that all evaluate the same number of batches.
    sizes = [
        next((size for size in of_ranks if size is not None), None)
        for of_ranks in zip(*gather(own_sizes), strict=True)
    ]
    present = [(named, size) for named, size in zip(sets, sizes, strict=True) if size is not None]
    batches_of_sets = []
    for named, (size, can_be_filled) in present:
        if eval_iters is not None:
            first = consumed_samples // len(present)
            iterator = iterate(named.dataset, consumed_samples=first, repeats=True)
            batches = ValidationBatches.of_stream(iterator, batches=eval_iters, name=named.name)
        else:
            _require_whole_set(named.name, size, batch_samples, can_be_filled=can_be_filled)
            whole_batches = None if named.dataset is None else WholeBatches(named.dataset, batch_samples)
            data = partial(iterate, whole_batches, consumed_samples=0)
            batches = ValidationBatches(data=data, batches=-(-size // batch_samples), name=named.name)
        batches_of_sets.append(batches)
    return batches_of_sets


def _prefixes(section: Any) -> list[str]:
    """Return the prefixes of the validation data; none if data is not read from prefixes."""
    if not isinstance(section, GPTDatasetConfig):
        return []
    return validation_prefixes(section.blend, section.data_path, section.blend_per_split)


def _with_one_prefix(section: Any, prefix: str) -> Any:
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
    shape: int | str | None = None  # the length of a list, or the type of a single set
    if built is not None:
        shape = len(built) if is_list else type(built).__name__
    shapes_by_rank = gather(shape)
    # single sets may be of different types
    shapes = {
        other if isinstance(other, int) else None: other for other in shapes_by_rank if other is not None
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


def _size(dataset: Any, batch_samples: int, eval_iters: int | None) -> tuple[int, bool]:
    """Return the length of a dataset that is read completely, and whether its last batch is or can be filled."""
    size = 0 if eval_iters is not None else len(dataset)
    if size % batch_samples == 0:
        return size, True
    sample = dataset[size - 1]
    return size, isinstance(sample, Mapping) and "loss_mask" in sample


def _require_whole_set(name: str, size: int, batch_samples: int, *, can_be_filled: bool) -> None:
    label = f"the set {name or 'of this run'}"
    if size == 0:
        raise NotEnoughSamplesError(
            f"validation.full_validation: {label} has no sequence. Give more data, or a smaller seq_length."
        )
    if not can_be_filled:
        raise ValidationDataError(
            f"validation.full_validation: {label} has {size} sequences, which is not a multiple of the batch of "
            f"{batch_samples}, and its samples have no loss_mask that would exclude what fills the last batch. Give "
            f"them a loss_mask, or set validation.eval_global_batch_size to a divisor of {size}."
        )
