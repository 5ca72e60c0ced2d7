"""Checkpoints of adapters alone: which entries of a model's state stay."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mb_checkpoint.errors import CheckpointConfigError

KeyFilter = Callable[[str], bool]
"""Says whether a parameter, by its name in the model, belongs to an adapter."""
_SECTION = re.compile(r"model\d*")


def apply_peft_adapter_filter_to_state_dict(state_dict: Mapping[str, Any], keep: KeyFilter) -> dict[str, Any]:
    """Return a state dict whose model sections hold what `keep` accepts, without extra states; the rest is unchanged.

    Args:
        state_dict: Sections by name; `model`, `model0`, `model1`, ... are those of the model.
        keep: Says of a name whether it stays.
    """
    return {
        name: _filtered(section, keep) if _SECTION.fullmatch(name) else section
        for name, section in state_dict.items()
    }


def _filtered(section: Mapping[str, Any], keep: KeyFilter) -> dict[str, Any]:
    return {key: value for key, value in section.items() if keep(key) and "_extra_state" not in key}


@dataclass(frozen=True, slots=True)
class AllButAdapters:
    """Filter of everything that another filter rejects."""

    adapters: KeyFilter

    def __call__(self, name: str) -> bool:
        """Whether a parameter belongs to the model under the adapters."""
        return not self.adapters(name)


def all_but(keep: KeyFilter) -> KeyFilter:
    """Return the filter of everything that is no adapter."""
    return AllButAdapters(keep)


def reject_empty_selection(keep: KeyFilter | None, *, accepted: int, total: int) -> None:
    """Reject a filter by which a run has no adapters, or nothing but adapters.

    Args:
        keep: The filter; None accepts everything.
        accepted: Number of weights of the model, on all ranks, that it accepts.
        total: Number of all weights.

    Raises:
        CheckpointConfigError: There are none.
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
