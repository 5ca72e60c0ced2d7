"""The largest attention logits of a step, and the weights that are scaled down where they grew too large. Needs torch.

Megatron's attention measures them, head by head, over Transformer Engine's kernels, where `qk_clip` or
`log_max_attention_logit` of the model is set; its `clip_qk` then scales a layer's query and key weights. Source of the
method: Kimi Team, "Kimi K2: Open Agentic Intelligence" (2025), section 2.1.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from mb_loop.errors import TrainSettingsError


@runtime_checkable
class MaxLogitKernel(Protocol):
    """A kernel that keeps the largest logit of each of its heads since it was last set to None."""

    current_max_attn_logits: Tensor | None


@runtime_checkable
class ClippableAttention(Protocol):
    """An attention layer whose `core_attention` may be `MaxLogitKernel`."""

    def clip_qk(self) -> None:
        """Scale down the weights of the heads whose logits are too large."""


class LogitGroups(Protocol):
    """The process groups over which logits are compared; Megatron's ProcessGroupCollection fits."""

    @property
    def dp_cp(self) -> ProcessGroup:
        """Ranks that hold the same weights."""

    @property
    def mp(self) -> ProcessGroup:
        """Ranks that share one replica of the model."""


class AttentionLogits:
    """What attention layers measured in a step. Building one is collective over `groups.mp`.

    Unlike Megatron's function for a whole model it finds its layers below any wrapper and in any family, compares them
    all in one collective, and leaves the weights alone after a step that the optimizer refused: its logits may be
    infinite, which would set weights to 0.

    Args:
        model: the chunks.
        groups: None: one rank.
        clip: scale weights down, too; otherwise the logits are only measured. Needs whole weights on each rank (LP03).

    Raises:
        TrainSettingsError: no layer of the model measures its logits.
    """

    def __init__(
        self, model: Sequence[torch.nn.Module], *, groups: LogitGroups | None = None, clip: bool = False
    ) -> None:
        self._groups = groups
        self._clip = clip
        self._device = next(model[0].parameters()).device
        found: list[Any] = [
            module for chunk in model for module in chunk.modules() if isinstance(module, ClippableAttention)
        ]
        self._layers = [layer for layer in found if isinstance(layer.core_attention, MaxLogitKernel)]
        count = torch.tensor(len(self._layers), device=self._device)
        _largest(count, None if groups is None else groups.mp)
        if not count.item():
            raise TrainSettingsError(
                f"model.qk_clip, model.log_max_attention_logit: none of {len(found)} attention layers measures its "
                "logits, so neither would act. Use transformer_impl transformer_engine on a GPU, or switch both off."
            )

    def reset(self) -> None:
        """Begin anew: what was measured, in an evaluation or in passes that are made again, is left out."""
        for layer in self._layers:
            layer.core_attention.current_max_attn_logits = None

    def __call__(self, *, successful: bool) -> Tensor:
        """Return the largest logit of the whole model as a scalar on the device, and clip if the step was `successful`.

        Collective over dp_cp and mp. Clipping waits for the device, in Megatron, once a layer.
        """
        groups = self._groups
        layers = [layer for layer in self._layers if layer.core_attention.current_max_attn_logits is not None]
        largest = torch.full((), float("-inf"), device=self._device)
        if layers:
            own = [layer.core_attention.current_max_attn_logits.float() for layer in layers]
            packed = torch.cat([logits.flatten() for logits in own])
            _largest(packed, None if groups is None else groups.dp_cp)
            largest = packed.max()
            parts = torch.split(packed, [logits.numel() for logits in own])
            for layer, logits, part in zip(layers, own, parts, strict=True):
                layer.core_attention.current_max_attn_logits = part.view_as(logits)
                if self._clip and successful:
                    layer.clip_qk()
        _largest(largest, None if groups is None else groups.mp)
        return largest


def _largest(values: Tensor, group: ProcessGroup | None) -> None:
    if group is not None and group.size() > 1:
        torch.distributed.all_reduce(values, op=ReduceOp.MAX, group=group)
