"""Container of a configuration, with the habits of Megatron-Bridge's. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import mb_trainer.config
from mb_config import Problem, Rule, runtime_config_update
from mb_config.trainer_api import world_size_of_environment
from mb_trainer.config import MockGPTDatasetConfig
from mb_trainer.registry import REGISTRY


@dataclass(kw_only=True)
class ConfigContainer(mb_trainer.config.ConfigContainer):
    """Configuration of a run, in which resolving computes what Megatron-Bridge does."""

    follows_megatron_bridge: ClassVar[bool] = True

    def validate(
        self, rules: Iterable[Rule] | None = None, *, world_size: int | None = None, **facts: Any
    ) -> list[Problem]:
        """Compute what follows from the settings, in place, then check; return the warnings.

        A container whose `dataset` is None, of a script that reads its own data, is checked with mock data.

        Args:
            rules: Rules to apply; None: those of all packages.
            world_size: Number of processes; None: that of the environment, as torchrun sets it, or 1.
            **facts: See `check`.

        Raises:
            mb_config.ConfigError: If there is an error; contains every problem, including warnings.
        """
        processes = world_size_of_environment() if world_size is None else world_size
        has_data = self.dataset is not None
        if not has_data:
            self.dataset = MockGPTDatasetConfig(
                seq_length=self.model.seq_length,
                reset_position_ids=False,
                reset_attention_mask=False,
                eod_mask_loss=False,
            )
        try:
            runtime_config_update(self, world_size=processes, provenance=facts.get("provenance"), rules=())
            return super().validate(rules, world_size=processes, **facts)
        finally:
            if not has_data:
                self.dataset = None  # type: ignore[assignment]

    def print_yaml(self) -> None:
        """Print the configuration as YAML."""
        print(self.to_yaml())

    @classmethod
    def from_yaml(cls, path: str | Path, targets: Mapping[str, type] | None = None, **options: Any) -> Self:
        """Build a container from a YAML file; `targets` None: `_target_` may name the classes of the trainer."""
        return super().from_yaml(path, REGISTRY.classes if targets is None else targets, **options)
