"""Layer patterns of hybrid models: one letter per layer, split into pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mb_plan.errors import PlanError

ATTENTION, LATENT, MLP, EXPERTS, MAMBA, DELTA = "*", "+", "-", "E", "M", "G"
"""Kinds of layers, by their letter in Megatron's patterns: attention, latent attention, MLP, experts, Mamba, gated
delta. A layer of a GPT has two: attention, and an MLP or experts."""

LETTERS = MAMBA + DELTA + ATTENTION + MLP + EXPERTS
"""Letters that a pattern may have."""

MAMBA_FILTER = 4
"""Kernel size of the convolution of a Mamba layer in Megatron Core, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPattern:
    """A pattern such as "M-G|*E/*-": layers, | between stages, / before the layers of each multi-token prediction."""

    pattern: str
    state: int
    """State size of a Mamba layer for each channel of a head."""
    mamba_groups: int
    mamba_heads: int
    mamba_head: int
    """Width of a Mamba head."""
    key_channels: int
    """Channels of all keys of a gated-delta layer."""
    key_head: int
    """Width of a key head of a gated-delta layer."""
    value_heads: int
    value_head: int
    """Width of a value head of a gated-delta layer."""
    delta_filter: int
    """Kernel size of the convolution of a gated-delta layer, in tokens."""

    def stages(self, *, pp: int, vp: int) -> Sequence[str] | None:
        """Return the letters of each stage, including virtual ones, in the order of the model; None without bars.

        Raises:
            PlanError: If the pattern has a different number of stages.
        """
        parts, number = self.pattern.split("/")[0].split("|"), pp * vp
        if len(parts) == 1 and vp == 1:
            return None
        if len(parts) != number:
            raise PlanError(
                f"model.hybrid_layer_pattern: {self.pattern!r} has {len(parts)} parts for {number} stages (pp={pp}, "
                f"vp={vp}). Each stage requires one part between |. Move the |, or change the sizes."
            )
        return parts


def layers_of(pattern: str) -> str:
    """Return the letters of the main model, without multi-token prediction.

    Raises:
        PlanError: If there are no layers or unknown letters, or the layers of the multi-token predictions differ.
    """
    letters = pattern.split("/")[0].replace("|", "")
    unknown = sorted({*letters, *"".join(layers_ahead(pattern))} - {*LETTERS})
    if unknown or not letters:
        raise PlanError(
            f"model.hybrid_layer_pattern: {pattern!r} is invalid ({', '.join(unknown) or 'no layers'}), because "
            f"the letters of layers are {', '.join(LETTERS)}. Correct it."
        )
    ahead = layers_ahead(pattern)
    if "" in ahead or len({*ahead}) > 1:
        raise PlanError(
            f"model.hybrid_layer_pattern: {pattern!r} has multi-token predictions with the layers "
            f"{', '.join(map(repr, ahead))}, but all must have the same layers, at least one. Write the same part "
            "after each /."
        )
    return letters


def layers_ahead(pattern: str) -> list[str]:
    """Return the letters of each multi-token prediction."""
    return pattern.split("/")[1:]
