"""Program with commands on configurations: what a trainer supplies to `check`, `show` and `rules`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mb_config.errors import ConfigReadError
from mb_config.overrides.registration import RecipeTable, Registry
from mb_config.overrides.request import ConfigRequest, PlainReader, RequestReader
from mb_config.perf.names import AUTO, read_name
from mb_config.preflight.facts import TargetMachine, collect_facts
from mb_config.preflight.module_layouts import smallest_world
from mb_config.preflight.problems import ConfigError, RuleLike
from mb_config.preflight.run import PreflightChecks, PreflightResult, preflight
from mb_config.resolve.fallbacks import select_local_layers
from mb_config.rules import RULES
from mb_schema.rules import Problem, value_at

GatherFacts = Callable[[TargetMachine, object], Mapping[str, object]]
"""Function of the target machines and of the section `env_vars` that returns the facts for rules."""


def shared_facts(target: TargetMachine, env_vars: object) -> dict[str, object]:
    """Return the facts that the arguments of a command state, and the variables of the shell. Reads no device."""
    engine = target.transformer_engine
    facts = collect_facts(
        world_size=target.world_size,
        env=os.environ,
        env_vars=env_vars,
        versions={"transformer_engine": engine} if engine else {},
        gpu=target.gpu,
    )
    local = {} if target.local_world_size is None else {"local_world_size": target.local_world_size}
    return {**facts, **local}


def configured_vocab_size(config: Any) -> int | None:
    """Return the rows of the embedding that the model sets; None if it sets none."""
    size = value_at("model.vocab_size", config.sections())
    return size if isinstance(size, int) else None


def _unplaced(_request: ConfigRequest, _out: Path | None) -> None:
    """Leave the paths of a configuration as they are."""


def _unverified(_config: Any) -> None:
    """Verify no files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProgram:
    """A trainer, as the commands use it. The defaults are those of the program `mb-config`."""

    name: str = "mb-config"
    """Name of the program, for messages."""

    reader: RequestReader = field(default_factory=PlainReader)
    """Reader of recipes and files."""

    checks: PreflightChecks = field(default_factory=PreflightChecks)
    """Rules and fallbacks."""

    current_rules: Callable[[], Sequence[RuleLike]] | None = None
    """Function that returns the rules once the configuration is read, because a recipe in a file can add some; None:
    those of `checks`."""

    rules_by_package: Mapping[str, Sequence[RuleLike]] = field(default_factory=lambda: {"mb-config": RULES})
    """Package to its rules."""

    gather_facts: GatherFacts = shared_facts
    """Function that returns the facts about the target machines."""

    world_size: int | None = None
    """Number of processes to check for if the arguments name none; None: rules on it are skipped."""

    place: Callable[[ConfigRequest, Path | None], None] = _unplaced
    """Function that sets the paths of a configuration to the run folder `out`, or to the default one."""

    embedding_rows: Callable[[Any], int | None] = configured_vocab_size
    """Function of a configuration that returns the padded rows of the embedding; None: unknown."""

    verify_data: Callable[[Any], str | None] = _unverified
    """Function that checks the files of a valid configuration and returns the problem, if any."""

    machine_notes: Callable[[], Sequence[str]] = tuple
    """Function that returns lines about the GPUs of this machine."""

    explain_other: Callable[[str], str | None] = lambda name: None
    """Function that explains a name that is not a rule, such as a constraint of a launcher; None: unknown."""

    @property
    def rules(self) -> Sequence[RuleLike]:
        """Rules that are known by now."""
        return self.checks.rules if self.current_rules is None else self.current_rules()


REGISTRY = Registry(recipes=RecipeTable({}))
"""Rules of the modules that the option --import of the program `mb-config` names."""


def standalone_program() -> ConfigProgram:
    """Return the program `mb-config`, with the rules of imported modules."""
    rules = {"mb-config": RULES, **REGISTRY.rules_by_package}
    return ConfigProgram(
        checks=PreflightChecks(rules=tuple(rule for each in rules.values() for rule in each)),
        rules_by_package=rules,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A request, and what a preflight found."""

    request: ConfigRequest
    result: PreflightResult
    facts: Mapping[str, object]
    target: TargetMachine
    """Machines that it was checked for."""


def machine_of_perf(program: ConfigProgram, config: Any, target: TargetMachine) -> TargetMachine:
    """Return the target; if that is this machine without a GPU, a machine with the GPU that `perf` names."""
    name = read_name(config.perf) if isinstance(config.perf, str) else None
    if name is None or name.gpu == AUTO or target.gpu is not None:
        return target
    here = program.gather_facts(target, config.env_vars)
    return replace(target, gpu=name.gpu) if here.get("cpu") else target


def examine(
    program: ConfigProgram,
    arguments: Sequence[str],
    *,
    files: Sequence[Path] = (),
    out: Path | None = None,
    target: TargetMachine,
    as_built: bool = False,
    unread: list[ConfigReadError] | None = None,
) -> Examination:
    """Read a request and check it for the target machines, in the run folder that it would use.

    Args:
        program: Reader, rules and facts.
        arguments: Recipe or file, and overrides.
        files: Files that are applied over the recipe.
        out: Run folder.
        target: Machines that the run is intended for. If this machine has no GPU and `perf` names one, machines with
            that GPU.
        as_built: Select the layers that a run on the target would build.
        unread: Receives the errors of settings that cannot be read. Problems of these fields are left out.

    Raises:
        ConfigReadError: Settings cannot be read, and `unread` is None.
    """
    request = program.reader.read(arguments, files=files, unread=unread)
    program.place(request, out)
    target = machine_of_perf(program, request.config, target)
    facts = program.gather_facts(target, request.config.env_vars)
    if as_built:
        select_local_layers(request.config, facts=facts, provenance=request.provenance)
    result = check_request(program, request, facts=facts)
    paths = [error.path.partition("[")[0] for error in unread or () if error.path]
    readable = [item for item in result.problems if not any(_reads(item, path) for path in paths)]
    return Examination(request=request, result=replace(result, problems=readable), facts=facts, target=target)


def read_for_sections(
    program: ConfigProgram,
    arguments: Sequence[str],
    *,
    files: Sequence[Path] = (),
    sections: Sequence[str],
    world_size: int | None = None,
) -> ConfigRequest:
    """Read and check a request for a command that uses some sections only, such as one that prepares data.

    Problems of which a field belongs to another section are ignored.

    Args:
        program: Reader, rules and facts.
        arguments: Recipe or file, and overrides.
        files: Files that are applied over the recipe.
        sections: Names of the used sections.
        world_size: Number of processes; None: the smallest number that holds the model.

    Raises:
        ConfigError: The used sections violate rules.
        ConfigReadError: Settings cannot be read.
    """
    world = world_size or smallest_world(program.reader.read(arguments, files=files).config.model)
    examined = examine(program, arguments, files=files, target=TargetMachine(world_size=world))
    used = tuple(f"{section}." for section in sections)
    problems = [
        problem for problem in examined.result.errors if all(path.startswith(used) for path in problem.fields)
    ]
    if problems:
        raise ConfigError(problems)
    return examined.request


def check_request(
    program: ConfigProgram, request: ConfigRequest, *, facts: Mapping[str, object]
) -> PreflightResult:
    """Check a request, and resolve its configuration in place."""
    return preflight(
        request.config,
        replace(program.checks, rules=program.rules),
        facts=facts,
        provenance=request.provenance,
        sections=request.sections,
    )


def _reads(problem: Problem, path: str) -> bool:
    """Return True if a problem concerns a field, its section or a part of the field."""
    return any(f"{one}.".startswith(f"{path}.") or f"{path}.".startswith(f"{one}.") for one in problem.fields)
