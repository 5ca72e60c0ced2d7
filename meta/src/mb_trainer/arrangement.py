"""Which ranks hold the model of a run, and how it is built on them: whole, or as modules with layouts of their own."""

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
    """What is trained, as its ranks hold it."""

    trainee: Trainee
    modules: Modules | None
    """None: it is one model."""
    stored: Any
    """Process groups, or places, by which checkpoints are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The groups of a run, opened and seeded."""

    groups: ProcessGroupCollection
    modules: ModuleGroups | None = None
    """Those of modules with layouts of their own; None: there is one model."""

    def readers(self) -> Any:
        """Return the process groups, or places, by which ranks read."""
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
    """Open the process groups that the model asks for, seed every generator, and close them at the end. Collective."""
    if has_module_layouts(config.model):
        with module_groups(world, config, device=device) as modules:
            seed_libraries(config)
            yield Arrangement(groups=modules.main, modules=modules)
    else:
        with process_groups(world, config, device=device) as groups:
            seed_everything(config, groups)
            yield Arrangement(groups=groups)
