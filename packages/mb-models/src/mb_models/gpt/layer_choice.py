"""Choice of layer implementation: Transformer Engine, Megatron's own layers, or layers for the CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Literal

import torch

from mb_models.errors import ModelConfigError
from mb_models.families import Family
from mb_models.training.chunks import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """Chosen layers, with the reason for the log."""

    spec: StackSpec
    """Layers, in the form that the provider of the family takes."""
    implementation: Literal["transformer_engine", "local"]
    """Value of `model.transformer_impl` that makes the rules on these layers apply."""
    reason: str
    """Description of the layers, with the reason of the choice."""

    def section_of(self, section: Any) -> Any:
        """Return a model section with this implementation, from which its model is built; the section is not modified.

        Without a GPU the implementation may be another than that of the section.
        """
        if section.transformer_impl == self.implementation:
            return section
        return replace(section, transformer_impl=self.implementation)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableLayers:
    """Layers that can be chosen in addition to those of the family."""

    host: Mapping[str, StackSpec] = field(default_factory=dict)
    """Family name -> layers for the CPU, such as `mb_host.megatron.families.HOST_LAYERS`."""
    installed: Callable[[str], object] = find_spec
    """Returns None for a module that cannot be imported."""


def choose_layers(
    family: Family, device: torch.device, *, wanted: str, available: AvailableLayers | None = None
) -> LayerChoice:
    """Choose the layers of a family for a device.

    Without a GPU these are the layers for the CPU in `available`, or else the family's local ones.

    Args:
        family: defines the layers.
        device: device of the model.
        wanted: `model.transformer_impl`: "transformer_engine" or "local".
        available: layers for the CPU, and the installed modules; None: no layers for the CPU.

    Raises:
        ModelConfigError: the family needs Transformer Engine on a GPU, and it is not selected or not installed; or
            there are no layers for the CPU.
    """
    available = AvailableLayers() if available is None else available
    if device.type != "cuda":
        return _host_layers(family, available.host)
    engine = family.transformer_engine if available.installed("transformer_engine") is not None else None
    if wanted != "local" and engine is not None:
        return LayerChoice(
            spec=engine, implementation="transformer_engine", reason="Transformer Engine layers"
        )
    because = "model.transformer_impl=local" if wanted == "local" else "Transformer Engine is not installed"
    if family.local is None:
        raise ModelConfigError(
            [
                f"model.transformer_impl: {because}, but these models have no other layers on a GPU. "
                "Install transformer-engine and leave model.transformer_impl at transformer_engine."
            ]
        )
    return LayerChoice(
        spec=family.local, implementation="local", reason=f"Megatron's local layers ({because})"
    )


def _host_layers(family: Family, host: Mapping[str, StackSpec]) -> LayerChoice:
    """Return the layers of a family for the CPU."""
    if family.name in host:
        return LayerChoice(
            spec=host[family.name], implementation="local", reason="host layers (there is no GPU)"
        )
    if family.local is None:
        raise ModelConfigError(
            [
                f"model: a {family.name} model has no layers for the CPU, because Megatron's require Transformer "
                "Engine. Pass layers for the CPU, such as mb_host.megatron.families.HOST_LAYERS, or use a GPU."
            ]
        )
    return LayerChoice(
        spec=family.local, implementation="local", reason="Megatron's local layers (there is no GPU)"
    )
