"""Validation sets that are read whole, or each by itself, as the training loop takes them. Imports torch."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mb_config import ValidationConfig
from mb_data import DatasetProvider, GPTDatasetConfig
from mb_data.errors import NotEnoughSamplesError
from mb_loop import ValidationSet, ValidationSetError


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDataset:
    """A validation dataset; None on ranks that read no data, and where there is no such data."""

    name: str
    dataset: Any


def wants_sets(validation: ValidationConfig) -> bool:
    """Say whether validation data has names or an end, rather than being one endless stream."""
    return validation.full_validation or validation.multiple_validation_sets


def build_sets(
    section: Any, validation: ValidationConfig, *, build: Callable[[Any], Any]
) -> list[NamedDataset]:
    """Build the validation sets. Collective as `build`; the names are alike on all ranks.

    Args:
        section: the dataset section.
        validation: says what is wanted.
        build: returns the validation dataset, or a list of several, of a section.

    Raises:
        ValidationSetError: there are more or fewer sets than names, or a whole set is wanted of data that have no end.
    """
    if validation.full_validation and isinstance(section, DatasetProvider):
        raise ValidationSetError(
            f"validation.full_validation: {type(section).__name__} makes as many samples as it is asked for, so that "
            "nothing says where its validation set ends. Leave it off, and set validation.eval_iters."
        )
    prefixes = _prefixes(section) if validation.multiple_validation_sets else []
    sections = [_alone(section, prefix) for prefix in prefixes] or [copy.copy(section)]
    built = []
    for each in sections:
        if isinstance(each, GPTDatasetConfig):
            each.full_validation = validation.full_validation
        found = build(each)
        built += found if isinstance(found, list) else [found]
    names = _names(validation, prefixes, number=len(built))
    return [NamedDataset(name=name, dataset=dataset) for name, dataset in zip(names, built, strict=True)]


def as_loop_sets(
    sets: Sequence[NamedDataset],
    *,
    batches: Callable[..., Any],
    global_batch_size: int,
    consumed_samples: int,
    eval_iters: int | None,
) -> list[ValidationSet]:
    """Return the sets as the loop reads them; empty where there is no validation data. Collective over the world.

    Args:
        sets: built on each rank, in the same order.
        batches: makes an iterator of a dataset from `consumed` samples on.
        global_batch_size: sequences of one evaluation batch. What is left of a whole set after full batches is not
            read.
        consumed_samples: validation samples read before, over all sets.
        eval_iters: batches of each set in one evaluation, which goes on where the last one ended; None: whole sets,
            from their beginning each time.

    Raises:
        NotEnoughSamplesError: on all ranks, a whole set fills no batch.
    """
    lengths = _agreed([None if each.dataset is None else len(each.dataset) for each in sets])
    there = [(each, length) for each, length in zip(sets, lengths, strict=True) if length is not None]
    loop_sets = []
    for each, length in there:
        data: Callable[[], Any]
        if eval_iters is None:
            data, number = partial(batches, each.dataset, consumed=0), length // global_batch_size
        else:
            data = _same(batches(each.dataset, consumed=consumed_samples // len(there)))
            number = eval_iters
        if number == 0 and eval_iters is None:
            raise NotEnoughSamplesError(
                f"validation.full_validation: the set {each.name or 'of this run'} has {length} sequences, fewer than "
                f"one batch of {global_batch_size}. Lower validation.eval_global_batch_size, or give more data."
            )
        loop_sets.append(ValidationSet(data=data, batches=number, name=each.name))
    return loop_sets


def one_set(data: Any, *, batches: int) -> list[ValidationSet]:
    """Return an iterator as a set of so many batches, for a loop that is told to read sets."""
    return [ValidationSet(data=_same(data), batches=batches)]


def _same(iterator: Any) -> Callable[[], Any]:
    return lambda: iterator


def _prefixes(section: Any) -> list[str]:
    """Return the prefixes that validation data comes from; none where data is not read from prefixes."""
    if not isinstance(section, GPTDatasetConfig):
        return []
    blend = section.blend if section.blend_per_split is None else section.blend_per_split[1]
    return [] if blend is None else list(blend[0])


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
        found = [Path(prefix).name for prefix in prefixes]
        return found or ([""] if number == 1 else [str(place) for place in range(number)])
    if len(given) != number:
        raise ValidationSetError(
            f"validation.validation_set_names: names {len(given)} sets ({', '.join(given)}), but there are {number}"
            f"{': ' + ', '.join(prefixes) if prefixes else ''}. Give one name for each, in this order."
        )
    return given


def _agreed(lengths: list[int | None]) -> list[int | None]:
    """Return the lengths that the ranks which read data know."""
    known: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(known, lengths)
    return [
        next((length for length in column if length is not None), None) for column in zip(*known, strict=True)
    ]
