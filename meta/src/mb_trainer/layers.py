"""Which modules the layers are made of: Transformer Engine's, Megatron's own, or the host's where there is no GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch

from mb_host.layers import host_block_spec
from mb_models import LayerSpec, local_spec, transformer_engine_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A choice of layers, with the reason for the log."""

    spec: LayerSpec
    implementation: Literal["transformer_engine", "local"]
    """What `model.transformer_impl` must say, so that the rules on these layers apply."""
    why: str


def choose_layers(
    device: torch.device, *, wanted: str, installed: Callable[[str], object] = find_spec
) -> Layers:
    """Choose the layer specification for a device.

    Args:
        device: where the model will be.
        wanted: `model.transformer_impl`: "transformer_engine" or "local".
        installed: says whether a module can be imported.
    """
    if device.type != "cuda":
        return Layers(spec=host_block_spec, implementation="local", why="host layers (there is no GPU)")
    if wanted == "local":
        return Layers(
            spec=local_spec,
            implementation="local",
            why="Megatron's local layers (model.transformer_impl=local)",
        )
    if installed("transformer_engine") is None:
        return Layers(
            spec=local_spec,
            implementation="local",
            why="Megatron's local layers (Transformer Engine is not installed)",
        )
    return Layers(
        spec=transformer_engine_spec, implementation="transformer_engine", why="Transformer Engine layers"
    )
