"""Checks before any process group or model is built: the rules of all packages. No torch."""

from collections.abc import Sequence
from dataclasses import replace

import mb_checkpoint.rules
import mb_config
import mb_data.rules
import mb_launch.rules
import mb_loop.rules
import mb_metrics.rules
import mb_models.rules
import mb_overlap.rules
import mb_plan.rules
import mb_resilience.rules
from mb_config import Provenance, RuleLike
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.run import PreflightChecks, PreflightResult, preflight
from mb_config.resolve.fallbacks import select_local_layers
from mb_models.rules.kernels import FALLBACKS
from mb_trainer.config import ConfigContainer
from mb_trainer.registry import REGISTRY
from mb_trainer.run.data_checks import EPOCH, TOKENIZER
from mb_trainer.run.machine import target_facts

RULES_BY_PACKAGE: dict[str, tuple[RuleLike, ...]] = {
    "mb-config": mb_config.RULES,
    "mb-plan": mb_plan.rules.RULES,
    "mb-models": mb_models.rules.RULES,
    "mb-data": mb_data.rules.RULES,
    "mb-loop": mb_loop.rules.RULES,
    "mb-overlap": mb_overlap.rules.RULES,
    "mb-checkpoint": mb_checkpoint.rules.RULES,
    "mb-metrics": mb_metrics.rules.RULES,
    "mb-resilience": mb_resilience.rules.RULES,
    "mb-launch": mb_launch.rules.RULES,
}
RULES = tuple(rule for rules in RULES_BY_PACKAGE.values() for rule in rules)
"""Rules of all packages."""

CHECKS = PreflightChecks(
    rules=RULES, fallbacks=(*FALLBACKS, *mb_checkpoint.rules.FALLBACKS), data=(TOKENIZER, EPOCH)
)


def all_rules() -> dict[str, Sequence[RuleLike]]:
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
