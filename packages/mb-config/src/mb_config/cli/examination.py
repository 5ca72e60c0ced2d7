"""A requested configuration with what its check found, for the commands of this package and of trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mb_config.errors import ConfigReadError
from mb_config.overrides.request import ConfigRequest
from mb_config.perf.names import AUTO, read_name
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.problems import concerns
from mb_config.preflight.run import PreflightChecks, PreflightResult, preflight
from mb_schema.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInput:
    """Arguments that the commands on a configuration have in common."""

    arguments: Sequence[str]
    """Recipe or file, and overrides."""

    files: Sequence[Path] = ()
    """Files that are applied over the recipe."""

    out: Path | None = None
    """Run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A request, and what a preflight found."""

    request: ConfigRequest
    result: PreflightResult
    facts: Mapping[str, object]
    target: TargetMachine
    """Machines that it was checked for."""

    rules: Sequence[Rule]
    """Rules that were checked."""

    unread: Sequence[ConfigReadError] = ()
    """Errors of settings that cannot be read."""


def examine(
    request: ConfigRequest,
    checks: PreflightChecks,
    *,
    facts: Mapping[str, object],
    target: TargetMachine,
    unread: Sequence[ConfigReadError] = (),
) -> Examination:
    """Check a request and resolve its configuration in place. Problems of fields that cannot be read are left out."""
    result = preflight(
        request.config, checks, facts=facts, provenance=request.provenance, sections=request.sections
    )
    paths = [error.path for error in unread if error.path]
    readable = [item for item in result.problems if not any(concerns(item, path) for path in paths)]
    return Examination(
        request=request,
        result=replace(result, problems=readable),
        facts=facts,
        target=target,
        rules=checks.rules,
        unread=unread,
    )


def machine_of_perf(config: Any, target: TargetMachine, *, facts: Mapping[str, object]) -> TargetMachine:
    """Return the target; if that is this machine without a GPU, a machine with the GPU that `perf` names.

    `facts` are those of the target.
    """
    name = read_name(config.perf) if isinstance(config.perf, str) else None
    if name is None or name.gpu == AUTO or target.gpu is not None or not facts.get("cpu"):
        return target
    return replace(target, gpu=name.gpu)
