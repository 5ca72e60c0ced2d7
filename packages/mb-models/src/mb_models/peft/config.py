"""The section `peft`: which adapters a model gets. Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from mb_models.strict_fields import StrictFields

TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""The linear layers of a transformer layer, as Megatron names them."""


CANONICAL_TARGETS = (
    "linear_q",
    "linear_k",
    "linear_v",
    "linear_proj",
    "linear_fc1_up",
    "linear_fc1_gate",
    "linear_fc2",
)
"""The same, with the layers apart that Megatron fuses."""

CANONICAL_NAMES = {
    "linear_qkv": {"q": "linear_q", "k": "linear_k", "v": "linear_v"},
    "linear_fc1": {"gate": "linear_fc1_gate", "up": "linear_fc1_up"},
}
"""Fused layer -> part -> name of the part, as canonical LoRA knows it."""


@dataclass(kw_only=True)
class PEFT(StrictFields):
    """What every way of adapting a model can do; the base of a class of one's own.

    `install` is called on every rank, after the model is built and before it is wrapped for data parallelism.
    """

    def install(self, chunks: Sequence[Any]) -> None:
        """Freeze what is not to be trained, and add what is, named as `is_adapter` says."""
        raise NotImplementedError(
            f"peft: {type(self).__name__} has no install, because PEFT is a base class. Define install(self, chunks)."
        )

    def is_adapter(self, name: str) -> bool:
        """Say whether a parameter, by its name in the model, was added; checkpoints hold only these."""
        return ".adapter." in name

    def start(self, chunks: Sequence[Any]) -> None:
        """Called once the model's own weights are loaded, where no adapters are; collective."""


@dataclass(kw_only=True)
class LoRA(PEFT):
    """Low-rank adapters: each target computes W x + alpha / dim * B A x, where A and B alone are trained.

    One pair for each of Megatron's layers, also where it fuses query, key and value, or gate and up projection.
    """

    dim: int = 32
    """Rank of the product B A."""
    alpha: float = 32.0
    """Scale of the product, over `dim`."""
    dropout: float = 0.0
    """Probability with which an input of A is set to 0 in training."""
    target_modules: list[str] = field(default_factory=lambda: list(TARGETS))
    """Layers that get adapters, by the last part of their name, or by their whole name with `*` for any text, as in
    "*.layers.0.*.linear_proj"; those of experts too. Each must match a layer, on any rank; of the default list, which
    is for many models, at least one.

    A T5's cross-attention has linear_q and linear_kv besides, which are adapted only if they are named."""
    exclude_modules: list[str] = field(default_factory=list)
    """Layers that get no adapters, in the same form, where `target_modules` is empty: all others get some."""

    def install(self, chunks: Sequence[Any]) -> None:
        """Freeze the model and add the adapters."""
        import_module("mb_models.peft.lora").install(chunks, self)  # brings torch, which sections do without


@dataclass(kw_only=True)
class CanonicalLoRA(LoRA):
    """LoRA with a pair of its own for query, key, value, gate and up projection, as outside of Megatron.

    Their names are linear_q, linear_k, linear_v, linear_fc1_gate and linear_fc1_up. linear_qkv and linear_fc1 select
    all parts.
    """

    target_modules: list[str] = field(default_factory=lambda: list(CANONICAL_TARGETS))
    """As in LoRA."""


@dataclass(kw_only=True)
class DoRA(LoRA):
    """LoRA whose sum is scaled, row by row, to a trained length: m (W + B A) / |W + B A|.

    The length is taken for constant in the backward pass, as its authors propose (arXiv 2402.09353, section 4.3).
    """

    alpha: float = 64.0
    """Scale of the product, over `dim`."""

    def start(self, chunks: Sequence[Any]) -> None:
        """Set the trained lengths to those of the loaded weights; collective over the tensor-parallel groups."""
        import_module("mb_models.peft.lora").init_magnitudes(chunks)  # as above


KINDS: dict[str, type[LoRA]] = {"lora": LoRA, "canonical_lora": CanonicalLoRA, "dora": DoRA}
"""Name, as in `peft=lora` -> section."""


class PeftError(ValueError):
    """Adapters that cannot be as asked for."""


def section_by_name(name: str) -> LoRA:
    """Return the section that a name stands for, with its defaults.

    Raises:
        PeftError: it stands for none.
    """
    if name not in KINDS:
        raise PeftError(f"peft: {name!r} is none of {', '.join(KINDS)}. Use one of them.")
    return KINDS[name]()
