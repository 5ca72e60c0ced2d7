"""Largest attention logits of a step, and clipping of the weights that produce them (QK-clip). Imports torch.

With `qk_clip` or `log_max_attention_logit` of the model, Megatron's attention measures the logits per head through
Transformer Engine's kernels; its `clip_qk` scales the query and key weights of a layer. Source of the method: Kimi
Team, "Kimi K2: Open Agentic Intelligence" (2025), section 2.1.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mb_loop.collectives import max_in_group_
from mb_loop.errors import TrainSettingsError


@runtime_checkable
class MaxLogitKernel(Protocol):
    """Attention kernel that stores the largest logit of each head since the value was last set to None."""

    current_max_attn_logits: Tensor | None


@runtime_checkable
class ClippableAttention(Protocol):
    """Attention layer whose `core_attention` may be a `MaxLogitKernel`."""

    def clip_qk(self) -> None:
        """Scale down the weights of heads whose logits are too large."""


class LogitSettings(Protocol):
    """Fields on attention logits that are read from section `model`."""

    @property
    def qk_clip(self) -> bool:
        """Scale down the weights of heads whose logits are too large."""

    @property
    def log_max_attention_logit(self) -> bool:
        """Report the largest logit."""


class LogitGroups(Protocol):
    """Process groups over which logits are reduced, such as Megatron's ProcessGroupCollection."""

    @property
    def dp_cp(self) -> ProcessGroup:
        """Ranks that hold the same weights."""

    @property
    def mp(self) -> ProcessGroup:
        """Ranks that share one replica of the model."""


class AttentionLogits:
    """Reader of the attention logits of a step. The constructor is collective over `groups.mp`.

    Unlike Megatron's function for a model, it finds layers below any wrapper and in any model family, reduces all
    layers in one collective, and does not change the weights after a step that the optimizer skipped: the logits of
    such a step may be infinite, which would set weights to 0.

    Args:
        model: model chunks of this rank.
        groups: process groups; None: a single rank.
        clip: also scale down weights; otherwise the logits are only measured. Requires unsharded weights (LP03).

    Raises:
        TrainSettingsError: no layer of the model measures its logits.
    """

    def __init__(
        self, model: Sequence[torch.nn.Module], *, groups: LogitGroups | None = None, clip: bool = False
    ) -> None:
        self._groups = groups
        self._clip = clip
        self._device = next(model[0].parameters()).device
        attention_layers: list[Any] = [
            module for chunk in model for module in chunk.modules() if isinstance(module, ClippableAttention)
        ]
        self._layers = [
            layer for layer in attention_layers if isinstance(layer.core_attention, MaxLogitKernel)
        ]
        count = torch.tensor(float(len(self._layers)), device=self._device)
        max_in_group_(count, None if groups is None else groups.mp)
        if not count.item():
            raise TrainSettingsError(
                f"model.qk_clip, model.log_max_attention_logit: none of {len(attention_layers)} attention layers "
                "measures its logits, so neither has an effect. Use transformer_impl transformer_engine on a GPU, or "
                "disable both."
            )

    def reset(self) -> None:
        """Reset the measured logits, so that those of evaluations and of repeated passes are ignored."""
        for layer in self._layers:
            layer.core_attention.current_max_attn_logits = None

    def __call__(self, *, successful: bool) -> Tensor:
        """Return the largest logit of the complete model as a device scalar; clip if the step was `successful`.

        Collective over dp_cp and mp. Clipping synchronises with the device once per layer, within Megatron.
        """
        groups = self._groups
        layers = [layer for layer in self._layers if layer.core_attention.current_max_attn_logits is not None]
        largest = torch.full((), float("-inf"), device=self._device)
        if layers:
            local_logits = [layer.core_attention.current_max_attn_logits.float() for layer in layers]
            packed = torch.cat([logits.flatten() for logits in local_logits])
            max_in_group_(packed, None if groups is None else groups.dp_cp)
            largest = packed.max()
            parts = torch.split(packed, [logits.numel() for logits in local_logits])
            for layer, logits, part in zip(layers, local_logits, parts, strict=True):
                layer.core_attention.current_max_attn_logits = part.view_as(logits)
                if self._clip and successful:
                    layer.clip_qk()
        max_in_group_(largest, None if groups is None else groups.mp)
        return largest


def build_attention_logits(
    section: LogitSettings, model: Sequence[torch.nn.Module], *, groups: LogitGroups | None = None
) -> AttentionLogits | None:
    """Return the reader configured by section `model`, for `mb_loop.train`; None: logits are not read.

    Collective over `groups.mp`; raises as `AttentionLogits`.

    Args:
        section: section `model`.
        model: model chunks of this rank.
        groups: process groups; None: a single rank.
    """
    if not (section.qk_clip or section.log_max_attention_logit):
        return None
    return AttentionLogits(model, groups=groups, clip=section.qk_clip)
