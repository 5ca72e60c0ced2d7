"""Loading of adapters on top of their base weights. Imports torch and megatron."""

from collections.abc import Callable
from typing import Any

from mb_models.errors import PeftError
from mb_models.peft.config import PEFT, LoRA
from mb_models.peft.lora import merge

IsNeeded = Callable[[str], bool]
"""Predicate of parameter names."""
Load = Callable[..., object]
"""Loads a checkpoint into the chunks. Called with a predicate of adapter names, which the checkpoint holds in addition
to, or on top of, base weights; and, if only some base weights are needed, with a predicate of their names."""


def require_adapters(section: PEFT | None) -> LoRA:
    """Return the section of a run's adapters if they can be merged and exported.

    Raises:
        PeftError: there are no adapters, or adapters of a user-defined class, which is unknown here.
    """
    if not isinstance(section, LoRA):
        kind = "a run without adapters" if section is None else type(section).__name__
        raise PeftError(
            f"peft: {kind} cannot be merged or exported, because it is not a kind of LoRA. Do it with the class "
            "itself, or export the complete model."
        )
    return section


def load_merged(
    section: PEFT | None, chunks: list[Any], load: Load, *, is_needed: IsNeeded | None = None
) -> None:
    """Load the base model and its adapters, and merge them. Collective.

    Args:
        section: section `peft` of the run.
        chunks: this rank's model chunks, not wrapped.
        load: loads base weights and adapters.
        is_needed: returns whether a base weight is loaded and merged; None: all are.

    Raises:
        PeftError: the adapters have a user-defined class, for which no merge is defined.
    """
    load_adapted(section, chunks, load, is_needed=is_needed)
    merge(chunks, is_needed=is_needed)


def load_adapted(
    section: PEFT | None, chunks: list[Any], load: Load, *, is_needed: IsNeeded | None = None
) -> LoRA:
    """Load the base model and its adapters without merging them; return the description of the adapters. Collective.

    Args:
        section: section `peft` of the run.
        chunks: this rank's model chunks, not wrapped; the adapters are installed in them.
        load: loads base weights and adapters.
        is_needed: returns whether a base weight is loaded; None: all are.

    Raises:
        PeftError: there are no adapters, or adapters of a user-defined class, which is unknown here.
    """
    adapters = require_adapters(section)
    adapters.install(chunks)
    load(adapters.is_adapter, *([] if is_needed is None else [is_needed]))
    return adapters
