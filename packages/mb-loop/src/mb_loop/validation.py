"""What a validation reads, when it is due, and the line that reports it. No torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mb_loop.errors import DataIteratorError
from mb_loop.settings import ValidationSettings
from mb_loop.state import TrainState


class ValidationSetError(ValueError):
    """The settings ask for something that the validation data cannot do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSet:
    """Data that is evaluated together."""

    data: Callable[[], Any]
    """Called when an evaluation begins; returns the iterator (list, None) to read. One that is made anew gives the same
    data each time, the same object goes on where it was."""

    batches: int
    """Global batches of one evaluation: all of the set, or a number. The same on all ranks."""

    name: str = ""
    """Told apart by it: losses are reported as "loss name set name"; empty: as "loss name"."""


def validation_sets(data: Any, validation: ValidationSettings) -> Sequence[ValidationSet]:
    """Return the sets of what was given as validation data: sets already, or an iterator for `eval_iters` batches.

    Raises:
        ValidationSetError: the settings need sets and there are none, or two sets have one name.
        DataIteratorError: plain data that is no iterator.
    """
    if isinstance(data, Sequence) and data and all(isinstance(each, ValidationSet) for each in data):
        names = [each.name for each in data]
        if len(set(names)) < len(names):
            raise ValidationSetError(
                f"validation.validation_set_names: {names} has a name twice, and their losses could not be told apart. "
                "Give each set a name of its own."
            )
        return data
    if validation.full_validation or validation.multiple_validation_sets:
        raise ValidationSetError(
            f"validation: full_validation={validation.full_validation}, multiple_validation_sets="
            f"{validation.multiple_validation_sets}, but the data is a plain iterator, which has no end and no name. "
            "Pass a list of mb_loop.ValidationSet, which know how many batches they have."
        )
    require_iterators(data, name="valid_data_iterator")
    return [ValidationSet(data=lambda: data, batches=validation.eval_iters or 0)]


def require_iterators(data: Any, *, name: str) -> None:
    """Refuse what cannot be read: anything but an iterator, a list with one per chunk, and None.

    Raises:
        DataIteratorError: it is something else.
    """
    for each in data if isinstance(data, list | tuple) else [data]:
        if each is not None and not hasattr(each, "__next__"):
            raise DataIteratorError(
                f"{name}: is of type {type(each).__name__}, which is no iterator, so the loop could not go on in it "
                "from step to step. Pass iter() of it, or an iterator that begins anew where it ends."
            )


def evaluation_due(validation: ValidationSettings, state: TrainState) -> bool:
    """Say whether a validation follows the step that was just counted."""
    if not (state.do_valid and evaluation_possible(validation) and validation.eval_interval):
        return False
    if validation.start_eval_at_iter is not None and state.step < validation.start_eval_at_iter:
        return False
    return state.step % validation.eval_interval == 0


def evaluation_possible(validation: ValidationSettings) -> bool:
    """Say whether an evaluation has batches: a number of them, or whole sets."""
    return bool(validation.eval_iters) or validation.full_validation


def validation_line(prefix: str, losses: Mapping[str, float]) -> str:
    """Return the line that log readers know: each loss with its perplexity, which is capped at exp(20)."""
    pieces = [
        f"{name} value: {loss:.6E} | {name} PPL: {math.exp(20 if loss > 20 else loss):.6E} | "
        for name, loss in losses.items()
    ]
    return f" validation loss at {prefix} | {''.join(pieces)}"
