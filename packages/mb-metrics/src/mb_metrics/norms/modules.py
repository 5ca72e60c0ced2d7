"""Norms of a model whose modules are on separate ranks, or have separate parallel layouts. Imports torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mb_metrics.norms.gradients import GLOBAL, PREFIX, report_l2_norm_grad
from mb_metrics.norms.parameters import NormGroups, calc_params_l2_norm
from mb_metrics.recorder.reductions import reduce_max_stat_across_model_parallel_group


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
