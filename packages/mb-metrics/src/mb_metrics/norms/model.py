"""Norms of the model of a run, for `TrainingMetrics`. Adapter for torch."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mb_metrics.norms.gradients import GradientNorms
from mb_metrics.norms.modules import ModuleNorms
from mb_metrics.norms.parameters import NormGroups, calc_params_l2_norm
from mb_metrics.run.sections import MeasuredModel


class Norms(Protocol):
    """L2 norms of a model that is distributed over ranks. All calls are collective over its groups."""

    def gradients(self, *, loss_scale: Any) -> Mapping[str, Any]:
        """Return the norm of each gradient and the total norm, before the optimizer unscales and clips them."""

    def parameters(self) -> float:
        """Return the norm of all parameters."""


class ModelNorms:
    """Norms of one model over its process groups. Construction with `gradients` is collective over the pipeline.

    Args:
        chunks: Model chunks of this rank.
        groups: Process groups with Megatron's field names.
        gradients: Whether gradient norms are needed; without them `gradients` returns no norms.
        megatron_fsdp: Whether Megatron FSDP shards the parameters.
    """

    def __init__(
        self, chunks: Sequence[Any], *, groups: object, gradients: bool = True, megatron_fsdp: bool = False
    ) -> None:
        self._chunks, self._groups = chunks, NormGroups.of(groups)
        self._megatron_fsdp = megatron_fsdp
        self._gradients = GradientNorms(chunks, groups=self._groups) if gradients else None

    def gradients(self, *, loss_scale: Any) -> Mapping[str, Any]:
        """Return the gradient norms of all stages, as tensors and without a host synchronization."""
        return {} if self._gradients is None else self._gradients(loss_scale=loss_scale)

    def parameters(self) -> float:
        """Return the norm of all parameters."""
        return calc_params_l2_norm(
            list(self._chunks), use_megatron_fsdp=self._megatron_fsdp, groups=self._groups
        )


def build_norms(model: MeasuredModel, *, gradients: bool = True, megatron_fsdp: bool = False) -> Norms:
    """Return the norms of a model, over its modules if they have a parallel layout each. Collective over the pipeline.

    Args:
        model: The wrapped model.
        gradients: Whether gradient norms are needed.
        megatron_fsdp: Whether Megatron FSDP shards the parameters.
    """
    modules = model.modules
    if modules is not None:
        return ModuleNorms(wrapped=modules.wrapped, groups=modules.local_groups, paths=modules.paths)
    return ModelNorms(model.chunks, groups=model.groups, gradients=gradients, megatron_fsdp=megatron_fsdp)
