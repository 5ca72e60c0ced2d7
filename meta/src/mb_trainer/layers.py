"""Choice of layer implementation: Transformer Engine, Megatron's own layers, or the CPU layers without a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch

from mb_models import ModelConfigError, StackSpec
from mb_trainer.families import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Chosen layers, with the reason for the log."""

    spec: StackSpec
    implementation: Literal["transformer_engine", "local"]
    """Value of `model.transformer_impl` that makes the rules on these layers apply."""
    why: str


def choose_layers(
    family: Family, device: torch.device, *, wanted: str, installed: Callable[[str], object] = find_spec
) -> Layers:
    """Choose the layers of a family for a device.

    Args:
        family: defines the available layers.
        device: device of the model.
        wanted: `model.transformer_impl`: "transformer_engine" or "local".
        installed: returns whether a module can be imported.

    Raises:
        ModelConfigError: the family needs Transformer Engine on a GPU, and it is not selected or not installed.
    """
    if device.type != "cuda":
        return Layers(spec=family.host, implementation="local", why="host layers (there is no GPU)")
    engine = family.transformer_engine if installed("transformer_engine") is not None else None
    if wanted != "local" and engine is not None:
        return Layers(spec=engine, implementation="transformer_engine", why="Transformer Engine layers")
    because = "model.transformer_impl=local" if wanted == "local" else "Transformer Engine is not installed"
    if family.local is None:
        raise ModelConfigError(
            [
                f"model.transformer_impl: {because}, but these models have no other layers on a GPU. "
                "Install transformer-engine and leave model.transformer_impl at transformer_engine."
            ]
        )
    return Layers(spec=family.local, implementation="local", why=f"Megatron's local layers ({because})")
