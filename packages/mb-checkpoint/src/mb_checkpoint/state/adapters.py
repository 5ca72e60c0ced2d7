"""Selection of adapter weights in the state dict of a model."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mb_checkpoint.errors import CheckpointConfigError

KeyFilter = Callable[[str], bool]
"""Predicate on the name of a parameter: True if the parameter belongs to an adapter."""
_SECTION = re.compile(r"model\d*")


def apply_peft_adapter_filter_to_state_dict(state_dict: Mapping[str, Any], keep: KeyFilter) -> dict[str, Any]:
    """Return a state dict whose model sections hold the entries that `keep` accepts, without extra states.

    Other sections are returned unchanged.

    Args:
        state_dict: Sections by name; `model`, `model0`, `model1`, ... are those of the model.
        keep: Returns True for the name of an entry that stays.
    """
    return {
        name: _filtered(section, keep) if _SECTION.fullmatch(name) else section
        for name, section in state_dict.items()
    }


def _filtered(section: Mapping[str, Any], keep: KeyFilter) -> dict[str, Any]:
    return {key: value for key, value in section.items() if keep(key) and "_extra_state" not in key}


@dataclass(frozen=True, slots=True)
class AllButAdapters:
    """Filter that accepts everything that another filter rejects."""

    adapters: KeyFilter

    def __call__(self, name: str) -> bool:
        """Return whether a parameter belongs to the base model."""
        return not self.adapters(name)


def all_but(keep: KeyFilter) -> KeyFilter:
    """Return the filter that accepts every parameter that is not an adapter."""
    return AllButAdapters(keep)


def either(first: KeyFilter, second: KeyFilter) -> KeyFilter:
    """Return the filter that accepts the parameters that at least one of two filters accepts."""
    return lambda name: first(name) or second(name)


def reject_empty_selection(keep: KeyFilter | None, *, accepted: int, total: int) -> None:
    """Reject a filter that accepts no parameter of the model, or every parameter as an adapter.

    Args:
        keep: The filter; None accepts everything.
        accepted: Number of weights of the model, over all ranks, that the filter accepts.
        total: Number of all weights.

    Raises:
        CheckpointConfigError: The filter leaves no weights to save or to load.
    """
    if keep is None:
        return
    if isinstance(keep, AllButAdapters) and not accepted:
        raise CheckpointConfigError(
            "peft.is_adapter: accepts every parameter of the model, so that no weight would be loaded from "
            "checkpoint.pretrained_checkpoint. Return True only for parameters that install has added."
        )
    if accepted == (total if isinstance(keep, AllButAdapters) else 0):
        raise CheckpointConfigError(
            "peft.is_adapter: accepts no parameter of the model, so that checkpoints would hold no weights. Return "
            "True for the parameters that install has added."
        )
