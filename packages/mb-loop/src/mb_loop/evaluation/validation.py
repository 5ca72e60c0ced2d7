"""Validation sets, the validation schedule, and the log line of a validation. Does not import torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mb_loop.data_iterator import require_iterators
from mb_loop.errors import LoopError
from mb_loop.settings import ValidationSettings
from mb_loop.state import TrainState


class ValidationSetError(LoopError, ValueError):
    """The validation data does not support the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSet:
    """Named validation data with a number of batches."""

    data: Callable[[], Any]
    """Called at the start of an evaluation; returns the iterator (or list, or None) to read. A new iterator yields the
    same data in each evaluation; the same object continues at its position."""

    batches: int
    """Global batches per evaluation; identical on all ranks."""

    name: str = ""
    """Name of the set: losses are reported as "loss name set name"; if empty, as "loss name"."""


@runtime_checkable
class NamedBatches(Protocol):
    """Fields of a validation set; objects of other classes than `ValidationSet` may have them."""

    @property
    def data(self) -> Callable[[], Any]:
        """Called at the start of an evaluation; returns the iterator to read."""

    @property
    def batches(self) -> int:
        """Global batches per evaluation."""

    @property
    def name(self) -> str:
        """Name of the set."""


def validation_sets(data: Any, validation: ValidationSettings) -> Sequence[NamedBatches]:
    """Return the validation sets in `data`; a plain iterator becomes one set of `eval_iters` batches.

    Raises:
        ValidationSetError: the settings require sets and there are none, or two sets have the same name.
        DataIteratorError: the data is neither sets nor an iterator.
    """
    if isinstance(data, Sequence) and data and all(isinstance(item, NamedBatches) for item in data):
        names = [named.name for named in data]
        if len(set(names)) < len(names):
            raise ValidationSetError(
                f"validation.validation_set_names: {names} has a name twice, so their losses could not be "
                "distinguished. Use a different name for each set."
            )
        return data
    if validation.full_validation or validation.multiple_validation_sets:
        raise ValidationSetError(
            f"validation: full_validation={validation.full_validation}, multiple_validation_sets="
            f"{validation.multiple_validation_sets}, but the data is a plain iterator, which has no end and no name. "
            "Pass a list of mb_loop.ValidationSet, which have a number of batches."
        )
    require_iterators(data, name="valid_data_iterator")
    return [ValidationSet(data=lambda: data, batches=validation.eval_iters or 0)]


def evaluation_due(validation: ValidationSettings, state: TrainState) -> bool:
    """Return whether a validation is due after the step that was just counted."""
    if not (state.do_valid and evaluation_possible(validation) and validation.eval_interval):
        return False
    if validation.start_eval_at_iter is not None and state.step < validation.start_eval_at_iter:
        return False
    return state.step % validation.eval_interval == 0


def evaluation_possible(validation: ValidationSettings) -> bool:
    """Return whether an evaluation has batches: `eval_iters`, or complete sets."""
    return bool(validation.eval_iters) or validation.full_validation


def validation_line(prefix: str, losses: Mapping[str, float]) -> str:
    """Return Megatron's log line: each loss with its perplexity, which is capped at exp(20)."""
    pieces = [
        f"{name} value: {loss:.6E} | {name} PPL: {math.exp(20 if loss > 20 else loss):.6E} | "
        for name, loss in losses.items()
    ]
    return f" validation loss at {prefix} | {''.join(pieces)}"
