"""Commands `check` and `show`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from difflib import get_close_matches

from mb_config.cli.examination import CommandInput, Examination, examine
from mb_config.cli.listing import Colours, counted, listing
from mb_config.cli.options import ViewOptions
from mb_config.cli.rules import PROGRAM, rules_by_package
from mb_config.container.display import show as show_text
from mb_config.container.non_defaults import non_default_values
from mb_config.errors import ConfigReadError, raise_errors
from mb_config.overrides.request import read_plain_request
from mb_config.preflight.facts import TargetMachine, collect_facts, process_packages
from mb_config.preflight.problems import ConfigError
from mb_config.preflight.problems import check as problems_of
from mb_config.preflight.run import PreflightChecks
from mb_config.resolve.fallbacks import NO_TRANSFORMER_ENGINE, select_local_layers
from mb_schema.exit_codes import DONE, FAILURE


class UnknownSectionError(ConfigReadError, LookupError):
    """Name that is not a section."""


def check(given: CommandInput, *, target: TargetMachine, as_json: bool) -> int:
    """Print every problem of a file. Return 1 if any of them rejects the run.

    Raises:
        ConfigReadError: The file cannot be read.
    """
    request = read_plain_request(given.arguments, files=given.files)
    facts = argument_facts(target, request.config.env_vars)
    select_local_layers(request.config, facts=facts, provenance=request.provenance)
    found = examine(request, known_checks(), facts=facts, target=target)
    return print_check(found, program=PROGRAM, as_json=as_json)


def show(given: CommandInput, *, target: TargetMachine, view: ViewOptions) -> int:
    """Print the resolved configuration of a file as YAML that can be loaded again.

    Raises:
        ConfigReadError: The file cannot be read.
        ConfigError: The configuration violates rules; it is printed before.
        UnknownSectionError: There is no such section.
    """
    request = read_plain_request(given.arguments, files=given.files)
    facts = argument_facts(target, request.config.env_vars)
    return print_config(examine(request, known_checks(), facts=facts, target=target), view)


def known_checks() -> PreflightChecks:
    """Return the rules of this package, and those of the modules that the user has imported."""
    return PreflightChecks(rules=tuple(rule for rules in rules_by_package().values() for rule in rules))


def argument_facts(target: TargetMachine, env_vars: object) -> dict[str, object]:
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


def print_check(examination: Examination, *, program: str, as_json: bool, notes: Sequence[str] = ()) -> int:
    """Print the problems of a request, and on stderr remarks on it. Return 1 if a problem rejects the run.

    Args:
        examination: The request and its problems.
        program: Name of the program, for remarks.
        as_json: Print problems and changes as JSON, and no remarks.
        notes: Remarks on the files and the machine of the run.

    Raises:
        ConfigReadError: Settings cannot be read; the problems of the others are printed before.
    """
    if as_json:
        print(json.dumps(report(examination), indent=2))
    else:
        for line in listing(examination.result.problems, Colours(sys.stdout.isatty())):
            print(line)
        for note in [*check_notes(examination), *notes]:
            print(note, file=sys.stderr)
        if examination.result.problems:
            example = examination.result.problems[0].id
            print(f"{program} explain {example} shows a rule with examples", file=sys.stderr)
    raise_errors(examination.unread)
    return FAILURE if examination.result.errors else DONE


def print_config(examination: Examination, view: ViewOptions) -> int:
    """Print the configuration of a request as YAML that can be loaded again.

    Raises:
        ConfigError: The configuration violates rules; it is printed before.
        UnknownSectionError: There is no such section.
    """
    request = examination.request
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
    for note in _resolving_notes(examination, "printed"):
        print(note, file=sys.stderr)
    if examination.result.errors:
        raise ConfigError(examination.result.errors)
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


def check_notes(examination: Examination) -> Iterator[str]:
    """Yield the remarks that follow the problems."""
    request, result, target = examination.request, examination.result, examination.target
    unread = len(examination.unread)
    errors, warnings = len(result.errors), len(result.warnings)
    on = f" on {target.gpu}" if target.gpu else ""
    size = target.world_size
    processes = "any number of processes" if size is None else counted(size, "process")
    yield (
        f"{request.name}, {processes}{on}: {counted(errors, 'error')}, {counted(warnings, 'warning')} "
        f"of {len(examination.rules)} rules"
        + (f"; {counted(unread, 'setting')} cannot be read" if unread else "")
    )
    yield from (f"resolved: {change}" for change in result.notable)
    yield from _plain_notes(examination)
    if target.gpu and examination.facts.get("transformer_engine") is None:
        yield "rules on Transformer Engine were left out: give --te VERSION"
    yield from _package_notes(examination)
    train = request.config.sections().get("train")
    if result.resolved and train is not None and train.num_epochs is not None and train.train_iters is None:
        yield "train.num_epochs: the number of steps is not known, because the samples are counted where the run starts"
    if errors and request.provenance.origin("model.transformer_impl") == NO_TRANSFORMER_ENGINE:
        yield (
            "checked with local layers, as it would run on this machine; --gpu NAME, such as h100, checks for another"
        )


def _package_notes(found: Examination) -> Iterator[str]:
    """Yield what the packages of this machine lack for a run on another one, whose packages are not known."""
    here = process_packages()
    unknown = {name for name in here if name in found.facts and found.facts[name] is None}
    if found.target.gpu is None or not unknown:
        return
    paths = {f"facts.{name}" for name in unknown}
    rules = [rule for rule in found.rules if paths.intersection(rule.fields)]
    for problem in problems_of(found.request.config.sections(), rules, facts={**found.facts, **here}):
        yield f"on this machine, and perhaps not on {found.target.gpu}: {problem.line}"


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
