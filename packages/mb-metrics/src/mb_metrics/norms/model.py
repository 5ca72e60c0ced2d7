"""Norms of the model of a run, over one parallel layout or over that of each module. Adapter for torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mb_metrics.norms.gradients import GLOBAL, PREFIX, GradientNorms, report_l2_norm_grad
from mb_metrics.norms.parameters import NormGroups, calc_params_l2_norm
from mb_metrics.recorder.reductions import reduce_max_stat_across_model_parallel_group
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNorms:
    """L2 norms over all modules of a model. Every rank calls each method; collective over the world."""

    wrapped: Mapping[str, Any]
    """Module -> its (wrapped) torch module, for the modules of this rank."""
    groups: Mapping[str, Any]
    """Module -> its process groups, for the modules of this rank; see `NormGroups.of`."""
    paths: Mapping[str, str]
    """Module -> its attribute path in the complete model, for all modules; identical on all ranks."""

    def parameters(self) -> float:
        """Return the norm of the parameters of all modules."""
        return self._over_modules(
            {
                name: calc_params_l2_norm([module], groups=NormGroups.of(self.groups[name]))
                for name, module in self.wrapped.items()
            }
        )

    def gradients(self, *, loss_scale: Any) -> dict[str, float]:
        """Return the gradient norms of all modules on every rank, before the optimizer clips them.

        Names are those of the complete model; the norms are divided by `loss_scale`.
        """
        scale = float(loss_scale)
        local: dict[str, float] = {}
        totals: dict[str, float] = {}
        for name, module in self.wrapped.items():
            measured = report_l2_norm_grad([module], groups=NormGroups.of(self.groups[name]))
            norms = {metric: norm / scale for metric, norm in measured.items()}
            totals[name] = norms.pop(GLOBAL)
            local |= {_global_name(metric, self.paths[name]): norm for metric, norm in norms.items()}
        gathered: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(gathered, local)
        everywhere = {metric: norm for norms in gathered for metric, norm in norms.items()}
        return {**everywhere, GLOBAL: self._over_modules(totals)}

    def _over_modules(self, norms: Mapping[str, float]) -> float:
        """Return the norm over all modules, computed from the norms of this rank's modules; NaN if one is NaN."""
        world = torch.distributed.group.WORLD
        of_modules = [
            reduce_max_stat_across_model_parallel_group(norms.get(name), world) for name in self.paths
        ]
        return math.sqrt(sum((norm or 0.0) ** 2 for norm in of_modules))


def _global_name(metric: str, path: str) -> str:
    """Return the name of a metric in the complete model: the module's path follows the name of its wrapper."""
    prefix = f"{PREFIX}module." if metric.startswith(f"{PREFIX}module.") else PREFIX
    return f"{prefix}{path}.{metric.removeprefix(prefix)}"


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
