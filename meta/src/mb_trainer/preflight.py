"""Everything that can be known before a process group or a model is built: rules and data files. No torch."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import mb_checkpoint.rules
import mb_config
import mb_data.rules
import mb_loop.rules
import mb_metrics.rules
import mb_models.rules
import mb_overlap.rules
import mb_resilience.rules
from mb_config import Change, ConfigError, Problem, Provenance, RuleLike, runtime_config_update
from mb_data import DataPathError, GPTDatasetConfig, verify_prefix
from mb_trainer.config import ConfigContainer
from mb_trainer.rules import RULES as TRAINER_RULES

RULES: tuple[RuleLike, ...] = (
    *mb_config.RULES,
    *mb_models.rules.RULES,
    *mb_data.rules.RULES,
    *mb_loop.rules.RULES,
    *mb_overlap.rules.RULES,
    *mb_checkpoint.rules.RULES,
    *mb_metrics.rules.RULES,
    *mb_resilience.rules.RULES,
    *TRAINER_RULES,
)
"""Every rule of every package."""


OPTIONAL_PACKAGES = ("tensorboard", "wandb", "mlflow", "comet_ml")
"""Packages whose presence rules may ask about."""


def facts(world_size: int, *, environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return what rules may ask about this machine and this launch."""
    packages = {f"{name}_installed": find_spec(name) is not None for name in OPTIONAL_PACKAGES}
    return {
        "world_size": world_size,
        "env": environment,
        "transformer_engine": find_spec("transformer_engine") is not None,
        **packages,
    }


def find_problems(
    config: ConfigContainer, *, facts: Mapping[str, object], provenance: Provenance | None = None
) -> list[Problem]:
    """Apply every rule; the configuration is not changed."""
    return mb_config.check(config.sections(), RULES, facts=facts, provenance=provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What settling a configuration brought to light."""

    changes: Sequence[Change]
    """Fields that resolving set, with reasons."""
    warnings: Sequence[Problem]
    """What was asked for and will not be as asked."""


def settle(config: ConfigContainer, *, world_size: int, provenance: Provenance) -> Settled:
    """Check every rule, resolve, and check what only a resolved configuration shows.

    Raises:
        ConfigError: rules are broken; holds every problem of the stage that found one.
        OverlapConflictError: wishes for overlap exclude each other.
    """
    known = facts(world_size)
    warnings = refuse(find_problems(config, facts=known, provenance=provenance))
    changes = runtime_config_update(config, world_size=world_size, provenance=provenance)
    refuse(find_problems(config, facts={**known, "resolved": True}, provenance=provenance))
    return Settled(changes=changes, warnings=warnings)


def refuse(problems: Sequence[Problem]) -> list[Problem]:
    """Raise when any problem is an error; return the warnings."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise ConfigError(errors)
    return [problem for problem in problems if problem.severity == "warning"]


def verify_data(config: ConfigContainer) -> None:
    """Look at every file that the dataset names, before anything is built.

    Raises:
        DataPathError: a path does not exist, or one of a `.bin`/`.idx` pair is missing.
        IndexedFormatError: a file is not what its name says, or is cut short.
    """
    dataset = config.dataset
    if not isinstance(dataset, GPTDatasetConfig):
        return
    dataset.finalize()
    blends = [dataset.blend, *(dataset.blend_per_split or [])]
    for prefixes, _ in filter(None, blends):
        for prefix in prefixes:
            verify_prefix(prefix)
    for source in getattr(dataset, "sources", None) or []:
        if not Path(source).exists():
            raise DataPathError(f"dataset.sources: {source} does not exist. Correct the path.")
