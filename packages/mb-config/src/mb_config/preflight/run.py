"""Preflight: a configuration is checked as written, resolved, and checked as resolved. No torch.

1. The fast settings of `perf` are applied; then values that the machine does not support and the user did not set are
   replaced (`fallbacks`).
2. All rules are applied to the configuration as written (`find_problems`), then those that read data (`DataCheck`).
3. The configuration is resolved, and planned (`ConfigContainer.planned_facts`); `checkpoint.save_interval=auto` takes
   its number of steps from the plan.
4. All rules are applied to the resolved configuration.
5. The problems are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any

from mb_config.container.section_types import check_config
from mb_config.overrides.provenance import Provenance
from mb_config.preflight.module_layouts import (
    ParallelSizeError,
    has_parallelism_per_module,
    one_replica,
    smallest_world,
)
from mb_config.preflight.problems import ConfigError, check, merge_problems
from mb_config.resolve.fallbacks import apply_fallbacks
from mb_config.resolve.precision_recipes import UnknownPrecisionError
from mb_config.resolve.resolver import (
    MIRRORED,
    Change,
    apply_perf,
    mimo_runtime_config_update,
    runtime_config_update,
)
from mb_config.resolve.saves import AUTO, resolve_save_interval
from mb_config.rules import RULES
from mb_config.rules.single_fields import SIZE_RULES
from mb_config.sections.startup import DistributedInitConfig
from mb_schema.rules import NOTHING, Problem, Rule, RuleError, value_at

_RESOLVED_SECTIONS = ("train", "model", "optimizer", "scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCheck:
    """Facts that are read from the files that sections name, for the rules on them."""

    read: Callable[[Any], Mapping[str, object]]
    """Function of the configuration that returns facts. Reports a file that cannot be read as a fact."""

    facts: frozenset[str]
    """Names of the facts that it may return."""

    sections: frozenset[str]
    """Sections that name the files. They are not read after an error in one of these sections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightChecks:
    """Rules that a configuration must satisfy."""

    rules: Sequence[Rule] = RULES
    """Rules of all sections."""

    fallbacks: Sequence[Rule] = ()
    """Rules whose rejected value is replaced if the user did not set it."""

    data: Sequence[DataCheck] = ()
    """Facts about data. They are read only if the fact `same_machine` is true."""

    def find_problems(
        self,
        config: Any,
        *,
        facts: Mapping[str, object],
        provenance: Provenance | None = None,
        sections: Collection[str] | None = None,
    ) -> list[Problem]:
        """Apply every rule, and check the type of every value. Does not modify anything.

        Args:
            config: A container.
            facts: Facts that rules read.
            provenance: Origins of the values.
            sections: Names of the sections to check; None: all.
        """
        known = _sections(config, sections)
        if "dist" in known:
            known["dist"] = effective_dist(config.dist, facts)
        seen = one_replica(config.model, facts)
        return check_config(config, self.rules, sections=known, facts=seen, provenance=provenance)

    @property
    def data_facts(self) -> set[str]:
        """Paths of the facts about data, such as "facts.tokenizer_error"."""
        return {f"facts.{name}" for check in self.data for name in check.facts}

    def read_data(
        self, config: Any, found: Iterable[Problem], *, facts: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Return the facts about data, except those that problems which were `found` make unreadable."""
        if not facts.get("same_machine"):
            return NOTHING
        wrong = {_section(problem) for problem in found if problem.severity == "error"}
        readable = (check for check in self.data if not wrong & check.sections)
        return {name: value for check in readable for name, value in check.read(config).items()}

    def find_data_problems(
        self,
        config: Any,
        found: Iterable[Problem],
        *,
        facts: Mapping[str, object],
        provenance: Provenance | None = None,
    ) -> list[Problem]:
        """Apply the rules on facts about data, except those on sections with problems that were `found`.

        Args:
            config: A container.
            found: Problems of the other rules.
            facts: Facts that rules read, with those that `read_data` returned.
            provenance: Origins of the values.
        """
        wrong = {_section(problem) for problem in found if problem.severity == "error"}
        paths = self.data_facts
        rules = [
            rule for rule in self.rules if paths.intersection(rule.fields) and _section(rule) not in wrong
        ]
        return check(config.sections(), rules, facts=facts, provenance=provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """Result of a preflight."""

    problems: Sequence[Problem]
    """Every violated rule, errors and warnings."""

    changes: Sequence[Change] = ()
    """Changes that resolving made; empty if the configuration was not resolved."""

    fallbacks: Sequence[Change] = ()
    """Defaults and values of a recipe that this machine does not support, replaced before rules were applied."""

    unresolved: str = ""
    """Reason why the configuration was not resolved, or only in part; empty if it was."""

    @property
    def resolved(self) -> bool:
        """Whether the configuration was resolved."""
        return not self.unresolved

    @property
    def notable(self) -> list[Change]:
        """Changes to report to the user: replaced values, environment variables that a run sets, the interval of saves.

        Those of `perf`, which the user requested, are only among the `changes`.
        """
        reported = (
            change for change in self.changes if change.field.startswith("env_vars.") or change.rule == AUTO
        )
        return [*self.fallbacks, *(change for change in reported if not change.rule.startswith("perf="))]

    @property
    def errors(self) -> list[Problem]:
        """Problems that prevent the run."""
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        """Problems that let the run start with other settings than requested."""
        return [problem for problem in self.problems if problem.severity == "warning"]

    def raise_errors(self) -> None:
        """Raise if there are errors, or if resolving failed.

        Raises:
            ConfigError: Contains every error.
        """
        if self.errors or not self.resolved:
            raise ConfigError(self.errors or self.problems)


def preflight(
    config: Any,
    checks: PreflightChecks | None = None,
    *,
    facts: Mapping[str, object],
    provenance: Provenance | None = None,
    sections: Collection[str] | None = None,
) -> PreflightResult:
    """Check a configuration, resolve it in place, and check it again. Does not raise for an invalid configuration.

    Args:
        config: A container. Only resolved in part if settings exclude each other. Not modified, but for `fallbacks`,
            if it cannot be resolved: the number of processes is not known, or a section is missing.
        checks: Rules; None: those of this package.
        facts: Facts that rules read. Without `world_size`, a copy is resolved for the smallest number of processes that
            holds the model, only to find settings that exclude each other.
        provenance: Origins of the values; receives each change. None: what the sections record.
        sections: Names of the sections that the configuration was read with; None: all.
    """
    checks = PreflightChecks() if checks is None else checks
    known = Provenance.of(config) if provenance is None else provenance
    facts = of_active_ranks(config.inprocess_restart, facts)
    fast = apply_perf(config, facts=facts, provenance=known)
    fallbacks = apply_fallbacks(config, checks.fallbacks, facts=facts, provenance=known)
    written = checks.find_problems(config, facts=facts, provenance=known, sections=sections)
    data = {**facts, **checks.read_data(config, written, facts=facts)}
    written += checks.find_data_problems(config, written, facts=data, provenance=known)
    unresolved = _why_unresolvable(facts, sections)
    target, origins = (deepcopy(config), deepcopy(known)) if unresolved else (config, known)
    try:
        changes = _resolve(target, facts=data, provenance=origins)
    except (ParallelSizeError, UnknownPrecisionError):  # rules report what the layout and the precision lack
        reason = unresolved or "the precision recipe is unknown"
        return PreflightResult(problems=written, fallbacks=fallbacks, unresolved=reason)
    except ValueError as error:
        problems = violations(error, origins)
        if unresolved:
            problems = [problem for problem in problems if _reads_only(problem, _sections(config, sections))]
        return PreflightResult(
            problems=merge_problems(written, problems),
            fallbacks=fallbacks,
            unresolved=unresolved or _rejected_by(problems),
        )
    if unresolved:
        return PreflightResult(problems=written, fallbacks=fallbacks, unresolved=unresolved)
    absurd = any(problem.id.startswith(SIZE_RULES) for problem in written)
    planned = NOTHING if absurd else config.planned_facts(facts)
    changes += resolve_save_interval(config, planned, provenance=known)
    later = checks.find_problems(
        config,
        facts={**facts, **planned, "resolved": True},
        provenance=known,
        sections=sections,
    )
    return PreflightResult(
        problems=merge_problems(_without_followers(written), _only_resolved(later, changes, planned)),
        changes=[*fast, *changes],
        fallbacks=fallbacks,
    )


def violations(error: ValueError, provenance: Provenance) -> list[Problem]:
    """Return the violated rules in an error of the resolver, with the origins of the values.

    Raises:
        ValueError: `error`, if it contains none.
    """
    if isinstance(error, ConfigError):
        return list(error.problems)
    if not isinstance(error, RuleError):
        raise error
    return [
        replace(
            problem,
            origin={
                path: provenance.origin(path) for path in problem.fields if not path.startswith("facts.")
            },
        )
        for problem in error.problems
    ]


def largest_world_size(
    config: Any, checks: PreflightChecks, *, facts: Mapping[str, object], at_most: int
) -> int:
    """Return the largest number of ranks, at most so many, that can train a configuration; 0 if there is none.

    Args:
        config: A container, not resolved; it is not modified.
        checks: Rules.
        facts: Facts that rules read, except for the number of ranks.
        at_most: Ranks that are available.
    """
    for ranks in range(at_most, 0, -1):
        known = {**facts, "world_size": ranks, "local_world_size": None, "processes": None}
        result = preflight(deepcopy(config), checks, facts=known)
        if result.resolved and not result.errors:
            return ranks
    return 0


def of_active_ranks(restart: Any, facts: Mapping[str, object]) -> Mapping[str, object]:
    """Return the facts for rules, with the number of ranks that train as `world_size`.

    `processes` is the number of processes. With in-process restarts some of them may be spare ranks.
    """
    processes = facts.get("processes", facts.get("world_size"))
    enabled, active = (
        value_at(f"restart.{name}", {"restart": restart}) for name in ("enabled", "active_world_size")
    )
    # the check reports values of other types
    if enabled is True and isinstance(active, int) and isinstance(processes, int):
        return {**facts, "processes": processes, "world_size": min(processes, max(1, active))}
    return {**facts, "processes": processes}


def effective_dist(dist: Any, facts: Mapping[str, object]) -> Any:
    """Return the section with the backend that a run uses: gloo without a GPU."""
    if not facts.get("cpu") or not isinstance(dist, DistributedInitConfig):  # the check reports its type
        return dist
    effective = copy(dist)
    effective.distributed_backend = "gloo"
    return effective


def _resolve(config: Any, *, facts: Mapping[str, object], provenance: Provenance) -> list[Change]:
    if has_parallelism_per_module(config.model):
        return mimo_runtime_config_update(config, provenance=provenance, facts=facts, rules=())
    world_size = facts.get("world_size")
    follows = config.follows_megatron_bridge
    size = (
        world_size
        if isinstance(world_size, int)
        else smallest_world(config.model, follows_megatron_bridge=follows)
    )
    return runtime_config_update(config, world_size=size, provenance=provenance, facts=facts, rules=())


def _without_followers(problems: Iterable[Problem]) -> list[Problem]:
    """Leave out warnings on two fields of one setting of which one is a default: resolving copies the other."""
    return [
        each
        for each in problems
        if each.severity == "error" or each.id not in MIRRORED or "default" not in each.origin.values()
    ]


def _only_resolved(
    problems: Iterable[Problem], changes: Iterable[Change], planned: Mapping[str, object]
) -> list[Problem]:
    """Return errors, and warnings that a configuration as written cannot have: on a computed length, and on a plan."""
    computed = {change.field for change in changes} & {"train.train_iters"}
    computed |= {f"facts.{name}" for name in planned}
    return [each for each in problems if each.severity == "error" or computed.intersection(each.fields)]


def _why_unresolvable(facts: Mapping[str, object], sections: Collection[str] | None) -> str:
    """Return why the sections of a file, None: all, cannot be resolved; empty if they can."""
    if not isinstance(facts.get("world_size"), int):
        return "the number of processes is not known"
    missing = [] if sections is None else [name for name in _RESOLVED_SECTIONS if name not in sections]
    noun = "section" if len(missing) == 1 else "sections"
    return f"the file has no {noun} {', '.join(missing)}" if missing else ""


def _rejected_by(problems: Iterable[Problem]) -> str:
    ids = list(dict.fromkeys(problem.id for problem in problems))
    return f"{', '.join(ids)} {'rejects' if len(ids) == 1 else 'reject'} the settings"


def _sections(config: Any, names: Collection[str] | None) -> dict[str, Any]:
    every: dict[str, Any] = config.sections()
    return every if names is None else {name: value for name, value in every.items() if name in names}


def _section(item: Problem | Rule) -> str:
    return item.fields[0].partition(".")[0]


def _reads_only(problem: Problem, sections: Mapping[str, object]) -> bool:
    """Return True if a problem reads only sections of the file, and so holds for any number of processes."""
    return all(path.partition(".")[0] in sections for path in problem.fields)
