"""Validation sets, read completely or as streams, one per name, in the form of the training loop. Imports torch."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mb_config import ValidationConfig
from mb_data import GPTDatasetConfig
from mb_data.errors import NotEnoughSamplesError
from mb_loop import ValidationSet, ValidationSetError
from mb_trainer.validation_rules import last_parts, validation_prefixes

Gather = Callable[[Any], Sequence[Any]]
"""Collective that gathers a value from each rank; returns the values in rank order."""

Shape = int | str | None
"""Summary of what a rank has built: the length of a list of sets, the class of one object, or nothing."""


def from_all_ranks(value: Any) -> Sequence[Any]:
    """Return the values of all ranks. Collective over the world."""
    known: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(known, value)
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDataset:
    """Validation dataset; None on ranks that read no data, and for absent data."""

    name: str
    dataset: Any


def wants_sets(validation: ValidationConfig) -> bool:
    """Return whether validation data has names or an end, rather than being one endless stream."""
    return validation.full_validation or validation.multiple_validation_sets


def build_sets(
    section: Any,
    validation: ValidationConfig,
    *,
    build: Callable[[Any], Any],
    gather: Gather = from_all_ranks,
) -> list[NamedDataset]:
    """Build the validation sets. Collective over the world; number and names are identical on all ranks.

    Args:
        section: the dataset section, finalized.
        validation: selects the sets.
        build: returns the validation dataset of a section, None, or a list of several.
        gather: gathers a value from each rank.

    Raises:
        ValidationSetError: on all ranks, the numbers of sets and names differ, a provider returned one set instead of
            several, or the ranks built different numbers of sets.
    """
    prefixes = _prefixes(section) if validation.multiple_validation_sets else []
    built = []
    for each in [_alone(section, prefix) for prefix in prefixes] or [copy.copy(section)]:
        if isinstance(each, GPTDatasetConfig):
            each.full_validation = validation.full_validation
        built.append(build(each))
    if not prefixes:
        built = _as_many_everywhere(built[0], section, validation, gather=gather)
    names = _names(validation, prefixes, number=len(built))
    return [NamedDataset(name=name, dataset=dataset) for name, dataset in zip(names, built, strict=True)]


def as_loop_sets(
    sets: Sequence[NamedDataset],
    *,
    batches: Callable[..., Any],
    batch_samples: int,
    consumed_samples: int,
    eval_iters: int | None,
    gather: Gather = from_all_ranks,
) -> list[ValidationSet]:
    """Return the sets for the training loop; empty without validation data. Collective over the world.

    Args:
        sets: built on each rank, in the same order.
        batches: makes an iterator of a dataset from `consumed` samples on.
        batch_samples: sequences of one evaluation batch. The rest of a complete set after its full batches is not read.
        consumed_samples: validation samples read before, over all sets.
        eval_iters: batches of each set in one evaluation, which continues where the last one ended; None: complete
            sets, from their start each time, and of known lengths.
        gather: gathers a value from each rank.

    Raises:
        NotEnoughSamplesError: on all ranks, a complete set fills no batch.
    """
    known = gather([_size(each.dataset, whole=eval_iters is None) for each in sets])
    sizes = [next((size for size in column if size is not None), None) for column in zip(*known, strict=True)]
    there = [(each, size) for each, size in zip(sets, sizes, strict=True) if size is not None]
    loop_sets = []
    for each, size in there:
        data: Callable[[], Any]
        if eval_iters is None:
            data, number = partial(batches, each.dataset, consumed=0), size // batch_samples
        else:
            data = _same(batches(each.dataset, consumed=consumed_samples // len(there)))
            number = eval_iters
        if number == 0 and eval_iters is None:
            raise NotEnoughSamplesError(
                f"validation.full_validation: the set {each.name or 'of this run'} has {size} sequences, fewer than "
                f"one batch of {batch_samples}. Lower validation.eval_global_batch_size, or give more data."
            )
        loop_sets.append(ValidationSet(data=data, batches=number, name=each.name))
    return loop_sets


def one_set(data: Any, *, batches: int) -> list[ValidationSet]:
    """Return an iterator as a set of `batches` batches, for a loop that reads sets."""
    return [ValidationSet(data=_same(data), batches=batches)]


def _same(iterator: Any) -> Callable[[], Any]:
    return lambda: iterator


def _prefixes(section: Any) -> list[str]:
    """Return the prefixes of the validation data; none if data is not read from prefixes."""
    if not isinstance(section, GPTDatasetConfig):
        return []
    return validation_prefixes(section.blend, section.data_path, section.blend_per_split)


def _alone(section: GPTDatasetConfig, prefix: str) -> GPTDatasetConfig:
    """Return the section with this prefix as its only validation data."""
    alone = copy.copy(section)
    if section.blend_per_split is None:
        alone.blend = ([prefix], None)
    else:
        alone.blend_per_split = [None, ([prefix], None), None]
    return alone


def _names(validation: ValidationConfig, prefixes: Sequence[str], *, number: int) -> list[str]:
    given = validation.validation_set_names
    if given is None:
        return last_parts(prefixes) or ([""] if number == 1 else [str(place) for place in range(number)])
    if len(given) != number:
        raise ValidationSetError(
            f"validation.validation_set_names: names {len(given)} sets ({', '.join(given)}), but there are {number}"
            f"{': ' + ', '.join(prefixes) if prefixes else ''}. Give one name for each, in this order."
        )
    return given


def _as_many_everywhere(
    found: Any, section: Any, validation: ValidationConfig, *, gather: Gather
) -> list[Any]:
    """Return this rank's result as a list of the same length on all ranks, filled with None where it has no data."""
    several = isinstance(found, list)
    known: Sequence[Shape] = gather(
        None if found is None else len(found) if several else type(found).__name__
    )
    shapes = {shape if isinstance(shape, int) else None: shape for shape in known if shape is not None}
    if len(shapes) > 1:
        raise ValidationSetError(
            f"dataset: {type(section).__name__} returned one validation set or a list on some ranks and another number "
            f"on others (by rank: {known}), so that they would evaluate different things. Return as many on each "
            "rank that reads data, and None on the others."
        )
    shape = next(iter(shapes.values()), None)
    if isinstance(shape, str) and validation.multiple_validation_sets:
        raise ValidationSetError(
            f"validation.multiple_validation_sets: {type(section).__name__} returned one {shape} as its "
            "validation data, and only a list is taken for several sets. Return a list, or leave it off."
        )
    if several:
        return list(found)
    return [found] * (shape if isinstance(shape, int) else 1)


def _size(dataset: Any, *, whole: bool) -> int | None:
    """Return the length of a dataset that is read completely, otherwise 0; None if there is none."""
    if dataset is None:
        return None
    return len(dataset) if whole else 0
