"""Commands `check` and `show`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mb_config.cli_errors import DONE, REJECTED
from mb_config.cli_listing import Colours, counted, listing, processes_text
from mb_config.display import show as show_text
from mb_config.errors import ConfigReadError, raise_all
from mb_config.facts import TargetMachine
from mb_config.fallbacks import NO_TRANSFORMER_ENGINE
from mb_config.non_defaults import non_default_values
from mb_config.problems import ConfigError
from mb_config.program import ConfigProgram, Examination, examine


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInput:
    """Arguments that the commands on a configuration have in common."""

    arguments: Sequence[str]
    """Recipe or file, and overrides."""

    files: Sequence[Path] = ()
    """Files that are applied over the recipe."""

    out: Path | None = None
    """Run folder."""


def check(program: ConfigProgram, given: CommandInput, *, target: TargetMachine, as_json: bool) -> int:
    """Print every problem. Return 1 if any of them rejects the run.

    Raises:
        ConfigReadError: Settings cannot be read, after the problems of the others are printed.
    """
    unread: list[ConfigReadError] = []
    found = examine(
        program,
        given.arguments,
        files=given.files,
        out=given.out,
        target=target,
        as_built=True,
        unread=unread,
    )
    if as_json:
        print(json.dumps(report(found), indent=2))
    else:
        for line in listing(found.result.problems, Colours(sys.stdout.isatty())):
            print(line)
        for note in notes(program, found, target, unread=len(unread)):
            print(note, file=sys.stderr)
    raise_all(unread)
    return REJECTED if found.result.errors else DONE


def show(
    program: ConfigProgram, given: CommandInput, *, target: TargetMachine, origin: bool, non_default: bool
) -> int:
    """Print the resolved configuration as YAML that can be loaded again.

    Args:
        program: Reader, rules and facts.
        given: Recipe or file, and overrides.
        target: Machines that the run is intended for.
        origin: Append the origin of each value.
        non_default: Print values that differ from Megatron Core, and the other sections, in place of YAML.

    Raises:
        ConfigError: The configuration violates rules; it is printed before.
    """
    found = examine(program, given.arguments, files=given.files, out=given.out, target=target)
    request = found.request
    if non_default:
        print(non_default_values(request.config))
    else:
        print(show_text(request.config, request.provenance, origin=origin), end="")
    if found.result.errors:
        raise ConfigError(found.result.errors)
    return DONE


def report(found: Examination) -> dict[str, object]:
    """Return problems and changes as plain data; of a plain file, also what was not checked."""
    result, plain = found.result, found.request.plain
    data: dict[str, object] = {
        "problems": [problem.to_dict() for problem in result.problems],
        "changes": [change.to_dict() for change in (*result.fallbacks, *result.changes)],
    }
    if plain is None:
        return data
    return data | {
        "unresolved": result.unresolved,
        "checked": list(plain.known),
        "unchecked": plain.unchecked(),
        "absent": list(plain.absent),
        "doubtful": list(plain.suspicious_keys),
    }


def notes(program: ConfigProgram, found: Examination, target: TargetMachine, *, unread: int) -> Iterator[str]:
    """Yield the remarks that follow the problems; `unread` is the number of settings that cannot be read."""
    request, result = found.request, found.result
    errors, warnings = len(result.errors), len(result.warnings)
    on = f" on {target.gpu}" if target.gpu else ""
    size = target.world_size
    size = target.world_size
    processes = "any number of processes" if size is None else processes_text(size)
    yield (
        f"{request.name}, {processes}{on}: {counted(errors, 'error')}, {counted(warnings, 'warning')} "
        f"of {len(program.checks.rules)} rules"
        + (f"; {counted(unread, 'setting')} cannot be read" if unread else "")
    )
    yield from (f"resolved: {change}" for change in result.notable)
    yield from _plain_notes(found)
    if target.gpu and found.facts.get("transformer_engine") is None:
        yield "rules on Transformer Engine were left out: give --te VERSION"
    if errors and request.provenance.origin("model.transformer_impl") == NO_TRANSFORMER_ENGINE:
        yield (
            "checked with local layers, as it would run on this machine; --gpu NAME, such as h100, checks for another"
        )
    if not errors and not unread:  # a section that a rule rejects cannot be finalized
        problem = program.verify_data(request.config)
        if problem is not None:
            yield f"on this machine: {problem}"
    if not target.gpu:
        yield from program.machine_notes()
    if result.problems:
        yield f"{program.name} explain {result.problems[0].id} shows a rule with examples"


def _plain_notes(found: Examination) -> Iterator[str]:
    """Yield what was not checked in a file that was read without the classes of its sections."""
    plain, result = found.request.plain, found.result
    if plain is None:
        return
    unchecked = plain.unchecked()
    if unchecked:
        named = (f"{name} ({package})" if package else name for name, package in unchecked.items())
        yield f"unchecked but for the shared rules: {', '.join(named)}"
    if plain.absent:
        yield f"not checked, because absent from the file: {', '.join(plain.absent)}"
    if plain.suspicious_keys:
        yield f"unknown to Megatron Core: {', '.join(plain.suspicious_keys)}"
    if "world_size" not in found.facts:
        yield "rules on the number of processes were skipped: pass --world-size"
    elif result.unresolved:
        yield f"checked as written, not as resolved: {result.unresolved}"
