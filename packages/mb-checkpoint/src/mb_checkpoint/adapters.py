"""Checkpoints of adapters alone: which entries of a model's state stay."""

import re
from collections.abc import Callable, Mapping
from typing import Any

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


def without(keep: KeyFilter) -> KeyFilter:
    """Return the filter of everything that is no adapter."""
    return lambda key: not keep(key)
