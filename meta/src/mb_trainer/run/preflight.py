"""Checks before a process group or model is built: the rules of all packages, and facts of this machine. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import mb_checkpoint
from mb_config import Provenance, Rule
from mb_config.trainer_api import (
    PreflightChecks,
    PreflightResult,
    TargetMachine,
    machine_facts,
    preflight,
    select_local_layers,
    short_name_of_first,
)
from mb_launch import GpuSources
from mb_launch.trainer_api import THIS_MACHINE, visible_gpu_names
from mb_models.trainer_api import FALLBACKS, kernel_facts
from mb_trainer.config import ConfigContainer
from mb_trainer.registry import REGISTRY
from mb_trainer.run.data_checks import EPOCH, TOKENIZER
from mb_trainer.run.rules import RULES, RULES_BY_PACKAGE


def target_facts(
    target: TargetMachine,
    env_vars: object = None,
    *,
    environment: Mapping[str, str] | None = None,
    sources: GpuSources = THIS_MACHINE,
) -> dict[str, object]:
    """Return the facts for rules; `sources` describe the GPUs of this machine."""
    gpus = partial(visible_gpu_names, sources=sources)
    kernels = kernel_facts()
    return machine_facts(target, gpus=gpus, kernels=kernels, env_vars=env_vars, environment=environment)


def first_gpu(environment: Mapping[str, str], *, sources: GpuSources = THIS_MACHINE) -> str | None:
    """Return the short name of the first GPU visible to CUDA; None without a GPU, or for an unknown model."""
    return short_name_of_first(visible_gpu_names(environment, sources=sources))


CHECKS = PreflightChecks(
    rules=RULES,
    fallbacks=(*FALLBACKS, *(rule for rule in mb_checkpoint.RULES if rule.fallback)),
    data=(TOKENIZER, EPOCH),
)


def all_rules() -> dict[str, Sequence[Rule]]:
    """Return the rules by package, with those of the modules that the user has imported."""
    return {**RULES_BY_PACKAGE, **REGISTRY.rules_by_package}


def all_checks() -> PreflightChecks:
    """Return the checks with the rules of the user."""
    return replace(CHECKS, rules=tuple(rule for rules in all_rules().values() for rule in rules))


def resolve_and_check(
    config: ConfigContainer,
    *,
    world_size: int,
    provenance: Provenance,
    local_world_size: int | None = None,
) -> PreflightResult:
    """Resolve a configuration in place for this machine and check it; reject it if it has errors.

    `world_size` and `local_world_size` are the processes of the run, and those of them on this machine, if known.

    Raises:
        ConfigError: rules are violated; holds every error.
    """
    target = TargetMachine(world_size=world_size, local_world_size=local_world_size)
    facts = target_facts(target, config.env_vars)
    select_local_layers(config, facts=facts, provenance=provenance)
    result = preflight(config, all_checks(), facts=facts, provenance=provenance)
    result.raise_errors()
    return result
