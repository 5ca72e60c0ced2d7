"""Adapters of experts in the format of Hugging Face's peft, whose models hold all experts of a layer in one tensor.

Shape letters: E experts, R rank of the adapters of one expert, I inputs and O outputs of it.
"""

import re
from typing import Any

import torch

from mb_models.errors import HuggingFaceError
from mb_models.hf.family import Section, TensorOrigin
from mb_models.peft.adapted_linear import joined_pair, scale_of
from mb_models.peft.config import DoRA, LoRA

_LAYER = re.compile(r".*?\.layers\.\d+\.")
_EXPERT_LAYERS = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
_RENAMED = {".block_sparse_moe.": ".mlp."}
"""Name in files of weights -> name in the models of transformers 5."""
_ORDER = ("gate_up_proj", "up_proj", "down_proj")
"""Tensors in the order of transformers; peft wraps the layer once for each of them, the last outermost."""


class ExpertAdapters:
    """Collector of the adapters of all experts of a complete model.

    Args:
        section: section of the adapters.
        config: section of the model.
    """

    def __init__(self, *, section: LoRA, config: Section) -> None:
        self._section, self._config = section, config
        self._pairs: dict[tuple[str, str], dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
        self._scale = 0.0

    def add(self, name: str, layer: Any, origin: TensorOrigin) -> None:
        """Add the adapters of one layer of an expert.

        Raises:
            HuggingFaceError: they are those of DoRA.
        """
        reject_dora(self._section, name)
        self._scale = scale_of(layer)
        a_RI, b_OR = joined_pair(layer)
        if origin.stacked and origin.form == "glu":  # rows of gate and up projection in turn
            b_OR = torch.stack(b_OR.chunk(2), dim=1).flatten(0, 1)
        module = origin.tensors[0].partition(".experts.")[0]
        for old, new in _RENAMED.items():
            module = f"{module}.".replace(old, new).removesuffix(".")
        tensor = "down_proj" if "linear_fc2" in name else "up_proj"
        if origin.form == "glu":
            tensor = "gate_up_proj"
        self._pairs.setdefault((f"{module}.experts", tensor), {})[origin.expert] = (a_RI, b_OR)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of all adapters by name; experts without adapters have zeros."""
        tensors: dict[str, torch.Tensor] = {}
        for module in dict.fromkeys(module for module, _ in self._pairs):
            adapted = [tensor for tensor in _ORDER if (module, tensor) in self._pairs]
            for depth, tensor in enumerate(reversed(adapted)):
                a_ERI, b_EOR = self._stacked(self._pairs[module, tensor])
                stem = module + ".base_layer" * depth
                tensors[f"{stem}.lora_A.weight"] = a_ERI.flatten(0, 1)
                tensors[f"{stem}.lora_B.weight"] = b_EOR.permute(1, 2, 0).flatten(1)  # experts vary fastest
        return tensors

    def parameters(self) -> list[str]:
        """Return the tensors of experts with adapters, without the numbers of layers."""
        return list(dict.fromkeys(below_layer(f"{module}.{tensor}") for module, tensor in self._pairs))

    def ranks(self) -> dict[str, tuple[int, float]]:
        """Return tensor -> rank of its adapters and factor of their product, where they are not the section's."""
        ranks = {}
        for (module, tensor), pairs in self._pairs.items():
            rank = next(iter(pairs.values()))[0].shape[0]
            if (rank, self._scale) != (self._section.dim, self._section.alpha / self._section.dim):
                ranks[below_layer(f"{module}.{tensor}")] = rank, self._scale
        return ranks

    def _stacked(
        self, pairs: dict[int, tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        a_RI, b_OR = next(iter(pairs.values()))
        nothing = (torch.zeros_like(a_RI), torch.zeros_like(b_OR))
        every = [pairs.get(expert, nothing) for expert in range(self._config.num_moe_experts or 0)]
        return torch.stack([a for a, _ in every]), torch.stack([b for _, b in every])


def below_layer(name: str) -> str:
    """Return the name of a tensor without its layer, such as mlp.experts.down_proj."""
    return _LAYER.sub("", name, count=1)


def is_renamed(module: str, *, config: Section) -> bool:
    """Return whether peft takes a linear layer for one of the experts.

    It renames these layers of adapters of transformers 4, whose experts were linear layers with gates, also where they
    belong to shared experts or to layers without experts. There the adapter is one of the layer's tensor.
    """
    return config.num_moe_experts is not None and config.gated_linear_unit and module in _EXPERT_LAYERS


def reject_dora(section: LoRA, name: str) -> None:
    """Reject DoRA of a layer that is a tensor in peft.

    Raises:
        HuggingFaceError: the section is DoRA's.
    """
    if isinstance(section, DoRA):
        raise HuggingFaceError(
            f"{name}: has DoRA, but peft has only LoRA for it, because models with experts have it as a tensor. Merge "
            "the adapters (mb export-hf --merge), or leave the MLP out of peft.target_modules."
        )
