"""The layers of a hybrid model by the letters of its pattern, and how a pattern is cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mb_config.plan.errors import PlanError

LETTERS = "MG*-E"
"""Mamba, gated delta, attention, MLP, experts: one layer each."""

MAMBA_FILTER = 4
"""Tokens that the convolution of a Mamba layer sees, in Megatron Core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPattern:
    """A pattern such as "M-G|*E/*-": layers, | between stages, and / before the layers of each further token."""

    pattern: str
    state: int
    """Channels of a Mamba layer's state, for each channel of a head."""
    mamba_groups: int
    mamba_heads: int
    mamba_head: int
    """Width of a Mamba head."""
    key_channels: int
    """Of all keys of a gated-delta layer."""
    value_heads: int
    value_head: int
    """Width of a gated-delta layer's value head."""
    delta_filter: int
    """Tokens that the convolution of a gated-delta layer sees."""

    def stages(self, *, pp: int, vp: int) -> Sequence[str]:
        """Return the letters of each stage, virtual ones too, in the order of the model.

        Raises:
            PlanError: the pattern has another number of stages.
        """
        parts, number = self.pattern.split("/")[0].split("|"), pp * vp
        if len(parts) == 1 and vp == 1 and len(parts[0]) % pp == 0:
            each = len(parts[0]) // pp
            parts = [parts[0][stage * each : (stage + 1) * each] for stage in range(pp)]
        if len(parts) != number:
            raise PlanError(
                f"model.hybrid_layer_pattern: {self.pattern!r} is cut into {len(parts)} stages, because there is one "
                f"part between | for each of {pp} stages times {vp} virtual ones. Move the |, or change the sizes."
            )
        return parts


def layers_of(pattern: str) -> str:
    """Return the letters of the model itself.

    Raises:
        PlanError: there is no layer, a letter that stands for none, or further tokens have other layers than the first
            of them.
    """
    letters = pattern.split("/")[0].replace("|", "")
    unknown = sorted({*letters, *"".join(layers_ahead(pattern))} - {*LETTERS})
    if unknown or not letters:
        raise PlanError(
            f"model.hybrid_layer_pattern: {pattern!r} is not counted ({', '.join(unknown) or 'no layers'}), because "
            f"layers are written {', '.join(LETTERS)}. Correct it."
        )
    ahead = layers_ahead(pattern)
    if "" in ahead or len({*ahead}) > 1:
        raise PlanError(
            f"model.hybrid_layer_pattern: {pattern!r} predicts further tokens by {', '.join(map(repr, ahead))}, "
            "because each is predicted by the same layers, at least one. Write the same part behind each /."
        )
    return letters


def layers_ahead(pattern: str) -> list[str]:
    """Return the letters that predict each further token."""
    return pattern.split("/")[1:]
