"""Training setup for MIMO (vision-language) models with per-module parallelism. Imports torch and megatron."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from megatron.core.models.mimo.config.role import MIMO_LANGUAGE_MODULE_KEY as LANGUAGE

from mb_config import OptimizerConfigOverrideProviderContext
from mb_config.mcore import to_megatron
from mb_metrics import NormGroups, calc_params_l2_norm, report_l2_norm_grad
from mb_metrics.gradient_norms import GLOBAL
from mb_models import MimoForwardStep, MimoModelConfig, MimoModules, ModuleGroups, mimo_parameter_count
from mb_models.mimo import VISION
from mb_trainer.config import ConfigContainer
from mb_trainer.families import ForwardStep
from mb_trainer.layers import Layers
from mb_trainer.trainee import Trainee, scheduled

PLACES: Mapping[str, str] = {LANGUAGE: "language_model", VISION: f"modality_submodules.{VISION}"}
"""Attribute path of each module in the complete model."""

BRIDGED = r"c10d::broadcast_: an autograd kernel was not registered"
"""Start of torch's warning on tensors that cross Megatron's bridge. Harmless: their gradients cross the bridge, too."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rank and size of one dimension, with the two methods of a process group that readers call."""

    number: int
    places: int

    def rank(self) -> int:
        """Return the rank."""
        return self.number

    def size(self) -> int:
        """Return the size."""
        return self.places


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Subset of a process group collection that readers and checkpoints use."""

    tp: Place
    pp: Place
    dp: Place
    cp: Place
    dp_cp: Any
    """Process group of this rank alone."""
    module_layouts: Mapping[str, Mapping[str, int]] | None = None
    """Parallel sizes and first rank of each module; None for readers, which do not use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Modules of a run, ready to train."""

    groups: ModuleGroups
    trainee: Trainee
    schedule: Mapping[str, Any]
    """Megatron's schedule, with its groups and bridges, and the groups over which losses are averaged."""

    @property
    def forward_step(self) -> Callable[..., ForwardStep]:
        """Factory of the forward step, called as (inspect_loss=)."""
        return partial(MimoForwardStep, rows=self.groups.rows)

    @property
    def stored(self) -> Places:
        """Positions by which checkpoints are written.

        Each rank stores its own random states, because it may have a different position in each module.
        """
        one = Place(0, 1)
        world = Place(torch.distributed.get_rank(), torch.distributed.get_world_size())
        layouts = {
            name: {
                "tensor_model_parallel_size": ranks.tensor_parallel_size,
                "data_parallel_size": ranks.data_parallel_size,
                "first_rank": ranks.first,
            }
            for name, ranks in self.groups.ranks.items()
        }
        return Places(tp=world, pp=one, dp=one, cp=one, dp_cp=self.groups.main.pp, module_layouts=layouts)

    def parameters(self) -> float:
        """Return the norm of the parameters of all modules. Collective over the world."""
        return self._over_modules(
            {
                name: calc_params_l2_norm([module], groups=NormGroups.of(self.groups.local[name]))
                for name, module in self._wrapped.items()
            }
        )

    @property
    def _wrapped(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.trainee.chunks[0].wrapped
        return found

    def gradients(self, *, loss_scale: Any) -> dict[str, float]:
        """Return the gradient norms of all modules on every rank, before the optimizer clips them.

        Collective over the world.
        """
        scale = float(loss_scale)
        own: dict[str, float] = {}
        totals: dict[str, float] = {}
        for name, module in self._wrapped.items():
            measured = report_l2_norm_grad([module], groups=NormGroups.of(self.groups.local[name]))
            norms = {metric: norm / scale for metric, norm in measured.items()}
            totals[name] = norms.pop(GLOBAL)
            where = f"/module.{PLACES[name]}."
            own |= {metric.replace("/module.", where, 1): norm for metric, norm in norms.items()}
        every: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(every, own)
        told = {metric: norm for norms in every for metric, norm in norms.items()}
        return {**told, GLOBAL: self._over_modules(totals)}

    def _over_modules(self, norms: Mapping[str, float]) -> float:
        """Return the norm over all modules, computed from the norms of this rank's modules."""
        device = next(self.trainee.chunks[0].parameters()).device
        squares = torch.tensor(
            [norms.get(name, 0.0) ** 2 for name in PLACES], dtype=torch.float64, device=device
        )
        torch.distributed.all_reduce(squares, op=torch.distributed.ReduceOp.MAX)
        return math.sqrt(squares.sum().item())


def readers_of(groups: ModuleGroups) -> Places:
    """Return the groups for reading data: every rank reads complete microbatches and uses its rows in the forward."""
    one = Place(0, 1)
    return Places(tp=one, pp=one, dp=one, cp=one, dp_cp=groups.main.pp)


def build_modules(
    config: ConfigContainer,
    *,
    groups: ModuleGroups,
    layers: Layers,
    tokenizer_vocab_size: int,
    device: torch.device,
) -> Modules:
    """Build this rank's modules, their optimizers and the scheduler. Collective over the world."""
    warnings.filterwarnings("ignore", message=BRIDGED)
    section = cast(MimoModelConfig, config.model)
    modules = MimoModules(
        section,
        groups=groups,
        layer_spec=layers.spec,
        device=device,
        tokenizer_vocab_size=tokenizer_vocab_size,
    )
    model = modules.provide(seed=config.rng.seed)
    modules.wrap(model, to_megatron(config.ddp))
    overrides = config.optimizer_config_override_provider.build_config_overrides(
        OptimizerConfigOverrideProviderContext(
            scheduler_config=config.scheduler, optimizer_config=config.optimizer, model=[model]
        )
    )
    optimizer = modules.optimizer(model, to_megatron(config.optimizer), overrides=overrides)
    trainee = Trainee(
        chunks=[model],
        optimizer=optimizer,
        scheduler=scheduled(optimizer, config),
        transformer=modules.transformer,
        vocab_size=modules.vocab_size,
        parameters=mimo_parameter_count(section, vocab_size=modules.vocab_size),
    )
    schedule = {"forward_backward_func": modules.forward_backward(), "pg_collection": groups.main}
    return Modules(groups=groups, trainee=trainee, schedule=schedule)


def who_is_where(groups: ModuleGroups) -> str:
    """Return a description of the ranks of each module and of its parallelism."""
    parts = []
    for name, title in ((VISION, "encoder"), (LANGUAGE, "language model")):
        ranks = groups.ranks[name]
        first, last = ranks.ranks[0], ranks.ranks[-1]
        where = f"rank {first}" if first == last else f"ranks {first} to {last}"
        sizes = f"tp {ranks.tensor_parallel_size}, dp {ranks.data_parallel_size}"
        parts.append(f"{title} on {where} ({sizes})")
    return ", ".join(parts)
