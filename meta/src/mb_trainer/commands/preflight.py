"""Implementation of `mb check`, `mb explain` and `mb config show`: checks before the launch. Needs no torch."""

import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import mb_config
from mb_config import ConfigError, ConfigReadError, Problem
from mb_config.errors import raise_all
from mb_config.message_text import MAX_MESSAGE_LENGTH, truncate
from mb_data.errors import CorpusError, IndexedFormatError, TokenizerError
from mb_launch import describe_gpus, read_gpus
from mb_models.vocab import VocabularyError
from mb_trainer.cloudai_rules import CONSTRAINT_COVERAGE
from mb_trainer.commands.errors import REFUSED, reported
from mb_trainer.machine import gather_facts
from mb_trainer.named_step import hold_once
from mb_trainer.preflight import NO_ENGINE, RULES, Findings, inspect, take_layers_of_this_machine, verify_data
from mb_trainer.reading import Request, read_request
from mb_trainer.run_folder import folder_of, place


class UnknownRuleError(ConfigReadError, LookupError):
    """Unknown name of a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Machines that a run is intended for, as described by the user."""

    world_size: int = 1
    gpu: str | None = None
    """Short name such as "h100"; None: the GPU of this machine."""
    transformer_engine: str | None = None
    """Version of Transformer Engine there; None: the installed one, or unknown if `gpu` is set."""
    apex: bool = False
    """Whether Apex with its CUDA extensions is installed there. Used if `gpu` names another machine."""
    local_world_size: int | None = None
    """Processes on one machine; None: unknown."""

    def facts(self, env_vars: Mapping[str, object]) -> dict[str, object]:
        """Return the facts about these machines that rules can read."""
        return gather_facts(
            self.world_size,
            gpu=self.gpu,
            transformer_engine=self.transformer_engine,
            apex=self.apex,
            local_world_size=self.local_world_size,
            env_vars=env_vars,
        )


def check(
    words: Sequence[str], *, files: Sequence[Path], out: Path | None, target: Target, as_json: bool
) -> int:
    """Print every problem. Return 1 if any of them rejects the run, or 2 if a setting cannot be read."""

    def work() -> int:
        unread: list[ConfigReadError] = []
        request, findings = examine(words, files=files, out=out, target=target, as_built=True, unread=unread)
        if as_json:
            print(json.dumps(report(findings), indent=2))
        else:
            for line in listing(findings.problems, Paint(sys.stdout.isatty())):
                print(line)
            for note in notes(request, findings, target, unread=len(unread)):
                print(note, file=sys.stderr)
        raise_all(unread)
        return REFUSED if findings.errors else 0

    return reported(work)


def examine(
    words: Sequence[str],
    *,
    files: Sequence[Path],
    out: Path | None,
    target: Target,
    as_built: bool = False,
    unread: list[ConfigReadError] | None = None,
) -> tuple[Request, Findings]:
    """Read a request and inspect it for the target, with the run folder that it would use.

    Args:
        words: Recipe and overrides.
        files: Configuration files applied over the recipe.
        out: Run folder.
        target: Machines that the run is intended for.
        as_built: Replace the layers by those that a run on the target would build.
        unread: Receives the errors of settings that cannot be read. Problems of these fields are left out.

    Raises:
        ConfigReadError: Settings cannot be read, and `unread` is None.
    """
    request = read_request(words, files=files, unread=unread)
    folder = folder_of(out, name=request.name)
    place(request.config, folder, request.provenance)
    if not request.config.validation.skip_train:
        hold_once(request.config.checkpoint, events=folder.events)
    known = target.facts(request.config.env_vars)
    if as_built:
        take_layers_of_this_machine(request.config, facts=known, provenance=request.provenance)
    findings = inspect(request.config, facts=known, provenance=request.provenance)
    paths = [error.path.partition("[")[0] for error in unread or () if error.path]
    readable = [item for item in findings.problems if not any(reads(item, path) for path in paths)]
    return request, replace(findings, problems=readable)


def reads(problem: Problem, path: str) -> bool:
    """Return whether a problem concerns a field, its section or a part of the field."""
    return any(f"{one}.".startswith(f"{path}.") or f"{path}.".startswith(f"{one}.") for one in problem.fields)


def explain(name: str) -> int:
    """Print a rule, its reason, an example that it rejects and one that passes. Return the exit code."""

    def work() -> int:
        known = {rule.id.lower(): rule for rule in RULES}
        rule = known.get(name.lower())
        if rule is None and name.upper() in CONSTRAINT_COVERAGE:
            print(explain_coverage(name.upper()))
            return 0
        if rule is None:
            near = difflib.get_close_matches(name.lower(), known, n=3)
            hint = (
                f"Nearest: {', '.join(known[key].id for key in near)}." if near else "Rules look like V242."
            )
            raise UnknownRuleError(f"{name}: is no rule. {hint} `mb check` names the rules that are broken.")
        print(mb_config.explain(rule))
        return 0

    return reported(work)


def explain_coverage(name: str) -> str:
    """Return the explanation of a CloudAI constraint: the equivalent rules, or the reason why it is not enforced."""
    found = CONSTRAINT_COVERAGE[name]
    same = f"The same is said by {' and '.join(found.rules)}." if not found.allowed else found.allowed
    pages = [mb_config.explain(rule) for rule in RULES if rule.id in found.rules]
    return "\n\n".join(
        [f"{name} is a constraint of CloudAI's on a launch, and no rule of its own. {same}", *pages]
    )


def show(
    words: Sequence[str], *, files: Sequence[Path], out: Path | None, target: Target, origin: bool
) -> int:
    """Print the resolved configuration as YAML that can be loaded again, with the origin of each value if `origin`."""

    def work() -> int:
        request, findings = examine(words, files=files, out=out, target=target)
        print(mb_config.show(request.config, request.provenance, origin=origin), end="")
        if findings.errors:
            raise ConfigError(findings.errors)
        return 0

    return reported(work)


def report(findings: Findings) -> dict[str, object]:
    """Return the problems and changes as JSON data."""
    return {
        "problems": [problem.to_dict() for problem in findings.problems],
        "changes": [change.to_dict() for change in (*findings.fallbacks, *findings.changes)],
    }


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours for a terminal; plain text elsewhere."""

    on: bool

    def __call__(self, text: str, code: str) -> str:
        """Return the text with an SGR code such as "31"."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.on else text


def listing(problems: Sequence[Problem], paint: Paint) -> list[str]:
    """Return the lines of the problems, grouped by section, errors before warnings."""
    lines = []
    ordered = sorted(problems, key=lambda problem: (section_of(problem), problem.severity))
    for section, group in groupby(ordered, key=section_of):
        lines.append(paint(section, "1"))
        for problem in group:
            lines += entry(problem, paint)
    return lines


def section_of(problem: Problem) -> str:
    """Return the section of a problem's first field."""
    return problem.fields[0].partition(".")[0].replace("facts", "this launch")


def entry(problem: Problem, paint: Paint) -> list[str]:
    """Return the lines of a problem: message, reason, fix and the origins of the values."""
    colour = "31" if problem.severity == "error" else "33"
    where = problem.fields[0].removeprefix("facts.")
    head = f"  {paint(f'{problem.severity} {problem.id}', colour)}  {where}: {problem.message}"
    body = [f"because {problem.why}", problem.fix]
    if problem.origin.get("model.transformer_impl") == NO_ENGINE:
        body.append("Or name the GPU that it is meant for, as in --gpu h100: the check is for this machine.")
    places = [f"{path} from {origin}" for path, origin in problem.origin.items() if origin != "default"]
    return [head, *(f"      {text}" for text in body), *(f"      {place}" for place in places)]


def notes(request: Request, findings: Findings, target: Target, *, unread: int) -> list[str]:
    """Return the remarks that follow the problems, with the number of `unread` settings."""
    errors, warnings = len(findings.errors), len(findings.warnings)
    processes = "1 process" if target.world_size == 1 else f"{target.world_size} processes"
    on = f" on {target.gpu}" if target.gpu else ""
    lines = [
        f"{request.name}, {processes}{on}: {counted(errors, 'error')}, {counted(warnings, 'warning')} "
        f"of {len(RULES)} rules" + (f"; {counted(unread, 'setting')} cannot be read" if unread else "")
    ]
    lines += [f"resolved: {change}" for change in findings.notable]
    if target.gpu and target.facts({})["transformer_engine"] is None:
        lines.append("rules on Transformer Engine were left out: give --te VERSION")
    if errors and request.provenance.origin("model.transformer_impl") == NO_ENGINE:
        lines.append(
            "checked with local layers, as it would run on this machine; --gpu NAME, such as h100, checks for another"
        )
    if not errors and not unread:  # a section that a rule rejects cannot be finalized
        try:
            verify_data(request.config)
        except (OSError, CorpusError, IndexedFormatError, TokenizerError, VocabularyError) as error:
            lines.append(f"on this machine: {truncate(str(error), MAX_MESSAGE_LENGTH)}")
    gpus = () if target.gpu else read_gpus(details=True)
    if gpus:
        lines.append(f"this machine: {describe_gpus(gpus)}")
    if findings.problems:
        lines.append(f"mb explain {findings.problems[0].id} shows a rule with examples")
    return lines


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
