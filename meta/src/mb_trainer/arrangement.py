"""Parallelism of a run's model: one model over all ranks, or modules with per-module parallelism."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_launch import World
from mb_models import ModuleGroups
from mb_trainer.config import ConfigContainer
from mb_trainer.families import Family
from mb_trainer.graphs import stream_of_wrapping
from mb_trainer.groups import module_groups, process_groups, seed_everything, seed_libraries
from mb_trainer.layers import Layers
from mb_trainer.mimo_training import Modules, build_modules, readers_of
from mb_trainer.preflight import has_module_layouts
from mb_trainer.trainee import Trainee, build_trainee


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Model to train, as its ranks hold it."""

    trainee: Trainee
    modules: Modules | None
    """None for one model without per-module parallelism."""
    stored: Any
    """Process groups, or `Places`, by which checkpoints are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Opened process groups of a run, with all generators seeded."""

    groups: ProcessGroupCollection
    modules: ModuleGroups | None = None
    """Groups of modules with per-module parallelism; None for one model."""

    def readers(self) -> Any:
        """Return the process groups, or `Places`, by which ranks read data."""
        return self.groups if self.modules is None else readers_of(self.modules)

    def build(
        self,
        config: ConfigContainer,
        *,
        family: Family,
        layers: Layers,
        tokenizer_vocab_size: int,
        device: torch.device,
    ) -> Built:
        """Build model, optimizer and scheduler. Collective over the world."""
        how: dict[str, Any] = {
            "layers": layers,
            "tokenizer_vocab_size": tokenizer_vocab_size,
            "device": device,
        }
        if self.modules is not None:
            modules = build_modules(config, groups=self.modules, **how)
            return Built(trainee=modules.trainee, modules=modules, stored=modules.stored)
        with stream_of_wrapping(config):
            trainee = build_trainee(config, family=family, groups=self.groups, **how)
        return Built(trainee=trainee, modules=None, stored=self.groups)


@contextmanager
def arranged(world: World, config: ConfigContainer, *, device: torch.device) -> Iterator[Arrangement]:
    """Open the process groups of the model, seed every generator, and close the groups at the end. Collective."""
    if has_module_layouts(config.model):
        with module_groups(world, config, device=device) as modules:
            seed_libraries(config)
            yield Arrangement(groups=modules.main, modules=modules)
    else:
        with process_groups(world, config, device=device) as groups:
            seed_everything(config, groups)
            yield Arrangement(groups=groups)
