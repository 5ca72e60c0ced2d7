"""Commands `check` and `show`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path

from mb_config.cli.listing import Colours, counted, listing, processes_text
from mb_config.cli.program import ConfigProgram, Examination, examine
from mb_config.container.display import show as show_text
from mb_config.container.non_defaults import non_default_values
from mb_config.errors import ConfigReadError, raise_errors
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.problems import ConfigError
from mb_config.resolve.fallbacks import NO_TRANSFORMER_ENGINE
from mb_schema.exit_codes import DONE, FAILURE


class UnknownSectionError(ConfigReadError, LookupError):
    """Name that is not a section."""

    __str__ = ConfigReadError.__str__


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
        for note in notes(program, found, unread=len(unread)):
            print(note, file=sys.stderr)
    raise_errors(unread)
    return FAILURE if found.result.errors else DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowView:
    """Selection of what `show` prints."""

    origin: bool = False
    """Append the origin of each value."""

    diff: bool = False
    """Print only values that differ from the defaults of the sections."""

    section: str | None = None
    """Print one section; None: all."""

    non_default: bool = False
    """Print values that differ from Megatron Core, and the other sections, in place of YAML."""


def show(program: ConfigProgram, given: CommandInput, *, target: TargetMachine, view: ShowView) -> int:
    """Print the resolved configuration as YAML that can be loaded again.

    Args:
        program: Reader, rules and facts.
        given: Recipe or file, and overrides.
        target: Machines that the run is intended for.
        view: Selection of the values.

    Raises:
        ConfigError: The configuration violates rules; it is printed before.
        UnknownSectionError: There is no such section.
    """
    found = examine(program, given.arguments, files=given.files, out=given.out, target=target)
    request = found.request
    sections = [item.name for item in fields(request.config)]
    if view.section is not None and view.section not in sections:
        near = get_close_matches(view.section, sections, n=3)
        listed = f"Nearest: {', '.join(near)}" if near else f"The sections are {', '.join(sections)}"
        raise UnknownSectionError(f"{view.section}: is not a section. {listed}.")
    if view.non_default:
        names = None if view.section is None else (view.section,)
        print(non_default_values(request.config, sections=names))
    else:
        text = show_text(
            request.config,
            request.provenance,
            origin=view.origin,
            defaults=not view.diff,
            section=view.section,
        )
        print(text, end="")
    for note in _resolving_notes(found, "printed"):
        print(note, file=sys.stderr)
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


def notes(program: ConfigProgram, found: Examination, *, unread: int) -> Iterator[str]:
    """Yield the remarks that follow the problems; `unread` is the number of settings that cannot be read."""
    request, result, target = found.request, found.result, found.target
    errors, warnings = len(result.errors), len(result.warnings)
    on = f" on {target.gpu}" if target.gpu else ""
    size = target.world_size
    processes = "any number of processes" if size is None else processes_text(size)
    yield (
        f"{request.name}, {processes}{on}: {counted(errors, 'error')}, {counted(warnings, 'warning')} "
        f"of {len(program.rules)} rules"
        + (f"; {counted(unread, 'setting')} cannot be read" if unread else "")
    )
    yield from (f"resolved: {change}" for change in result.notable)
    yield from _plain_notes(found)
    if target.gpu and found.facts.get("transformer_engine") is None:
        yield "rules on Transformer Engine were left out: give --te VERSION"
    train = request.config.sections().get("train")
    if result.resolved and train is not None and train.num_epochs is not None and train.train_iters is None:
        yield "train.num_epochs: the number of steps is not known, because the samples are counted where the run starts"
    if errors and request.provenance.origin("model.transformer_impl") == NO_TRANSFORMER_ENGINE:
        yield (
            "checked with local layers, as it would run on this machine; --gpu NAME, such as h100, checks for another"
        )
    if not errors and not unread:  # a section that a rule rejects cannot be finalized
        problem = program.verify_data(request.config)
        if problem is not None:
            yield f"on this machine: {problem}"
        yield from _memory_notes(program, found)
    if not target.gpu:
        yield from program.machine_notes()
    if result.problems:
        yield f"{program.name} explain {result.problems[0].id} shows a rule with examples"


def _memory_notes(program: ConfigProgram, found: Examination) -> Iterator[str]:
    """Yield that the run does not fit the GPUs, if that depends on a vocabulary that only its tokenizer knows."""
    target, config = found.target, found.request.config
    rows = program.embedding_rows(config)
    known = any(problem.id.startswith("PL") for problem in found.result.problems)
    if not found.result.resolved or known or rows is None:
        return
    facts = {"world_size": target.world_size, "gpu": target.gpu}
    memory = config.planned_facts(facts, vocab_size=rows)
    need, size = memory.get("memory_of_run"), memory.get("memory_of_gpu")
    if need is not None and size is not None and need > size:
        yield (
            f"warning: the fullest rank needs {need / 2**30:.1f} GiB, and {target.gpu} has {size / 2**30:.1f}: "
            f"see {program.name} plan"
        )


def _plain_notes(found: Examination) -> Iterator[str]:
    """Yield what was not checked in a file that was read without the classes of its sections."""
    plain = found.request.plain
    if plain is None:
        return
    unchecked = plain.unchecked()
    if unchecked:
        named = (f"{name} ({package})" if package else name for name, package in unchecked.items())
        yield f"not checked, because the rules are in the package: {', '.join(named)}"
    if plain.absent:
        yield f"not checked, because absent from the file: {', '.join(plain.absent)}"
    if plain.suspicious_keys:
        yield f"unknown to Megatron Core: {', '.join(plain.suspicious_keys)}"
    if "world_size" not in found.facts:
        yield "rules on the number of processes were skipped: pass --world-size"
    else:
        yield from _resolving_notes(found, "checked")


def _resolving_notes(found: Examination, done: str) -> Iterator[str]:
    """Yield why the configuration was checked or printed as written, if it was not resolved."""
    if found.result.unresolved:
        advice = "" if "world_size" in found.facts else ". Pass --world-size"
        yield f"{done} as written, not as resolved: {found.result.unresolved}{advice}"
