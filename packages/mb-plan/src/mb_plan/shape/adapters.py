"""Low-rank adapters of a run whose base model is frozen: section `peft`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mb_plan.errors import PlanError
from mb_plan.shape.fields import read_field
from mb_plan.shape.model_shape import ModelShape
from mb_plan.shape.products import Product, experts_of

OUTPUT = "output_layer"
AHEAD = "eh_proj"
"""Names of the output layer, and of the projection of a depth of multi-token prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Low-rank adapters A and B of linear layers, which compute W x + B A x. Only A and B are trained."""

    rank: int
    """Rows of A and columns of B, the same for each adapter that is not of an expert."""
    targets: tuple[str, ...]
    """Patterns of the layers that have adapters: last parts of names, or names with `*` for any text."""
    exclude: tuple[str, ...]
    """Patterns of the layers that have none, if there are no targets: all others have adapters."""
    canonical: bool = False
    """Layers that are fused in one have separate adapters: queries, keys and values, or gate and input of an MLP."""
    magnitude: bool = False
    """Each output has a trained scale (DoRA)."""
    divided: bool = False
    """The rank of experts is divided by the number of experts of a token."""
    shared: bool = False
    """The experts of a layer have one adapter, and not one each."""
    grouped: bool = False
    """The experts of a layer are one layer (`model.moe_grouped_gemm`), without numbers in its name."""

    def rank_of(self, product: Product, shape: ModelShape) -> int:
        """Return the rank of the adapters of a product of a model.

        Raises:
            PlanError: The number of experts of a token does not divide it.
        """
        if not (self.divided and product.grouped):
            return self.rank
        top_k = experts_of(shape).top_k
        if self.rank % top_k:
            raise PlanError(
                f"peft.dim: {self.rank} is not a multiple of model.moe_router_topk={top_k}, by which "
                "peft.normalize_moe_lora divides it. Change one of them."
            )
        return self.rank // top_k

    def widths(self, name: str, product: Product) -> tuple[float, ...]:
        """Return the number of outputs of each adapter of a layer; empty without adapters.

        Args:
            name: Name of the layer in the model.
            product: Its product.
        """
        if self.grouped and product.grouped:
            name = name.replace(".local_experts.0.", ".")
        if not product.module and name != OUTPUT and not name.endswith(AHEAD):
            return ()
        stem, _, leaf = name.rpartition(".")
        parts = product.fused if self.canonical and product.fused else {leaf: product.outputs}
        return tuple(width for part, width in parts.items() if self._selects(name, f"{stem}.{part}"))

    def _selects(self, name: str, part: str) -> bool:
        """Return whether a layer has an adapter, or with `canonical` the part of this name that is fused in it."""
        patterns = self.targets or self.exclude
        listed = any(_matches(pattern, layer) for pattern in patterns for layer in (name, part))
        return listed == bool(self.targets)


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern is the last part of a name, or matches the name, with `*` for any text."""
    text = ".*".join(re.escape(piece) for piece in pattern.split("*"))
    return name.rpartition(".")[2] == pattern or re.fullmatch(text, name) is not None


def read_adapters(section: object, model: object = None) -> Adapters | None:
    """Read a section `peft`: LoRA, canonical LoRA or DoRA; None: all weights are trained.

    `model` is the section of the model, which states whether its experts are computed together; None: they are not.

    Raises:
        PlanError: The section is of another method, or names experts by number.
    """
    if section is None:
        return None
    rank, targets = read_field(section, "dim"), read_field(section, "target_modules")
    if not isinstance(rank, int) or rank < 1 or targets is None:
        raise PlanError(
            f"peft: what {type(section).__name__} trains is not known (dim={rank!r}, target_modules={targets!r}), "
            "because only LoRA, canonical LoRA and DoRA are planned. Measure a few steps."
        )
    exclude = read_field(section, "exclude_modules") or ()
    for pattern in (*targets, *exclude):
        if re.search(r"local_experts\.\d", pattern):
            raise PlanError(
                f"peft.target_modules: {pattern} selects single experts, which are not planned. Select all of them, "
                "as in *.linear_fc1."
            )
    kinds = _class_names(section)
    grouped = bool(read_field(model, "moe_grouped_gemm", False))
    return Adapters(
        rank=rank,
        targets=tuple(targets),
        exclude=tuple(exclude),
        canonical="CanonicalLoRA" in kinds,
        magnitude="DoRA" in kinds,
        divided=bool(read_field(section, "normalize_moe_lora", False)),
        shared=grouped and bool(read_field(section, "share_expert_adapters", True)),
        grouped=grouped,
    )


def _class_names(section: object) -> set[str]:
    """Return the name of the class of a section; of an object also those of its base classes."""
    if isinstance(section, Mapping):
        return {str(section.get("_target_", "")).rpartition(".")[2]}
    return {cls.__name__ for cls in type(section).__mro__}
