"""Rules on configuration values: their record, their check and their messages.

A rule is a pure function of the values of some fields. A violated rule reads `path: problem (values), because reason.
Fix.` wherever it is reported: by `check`, by `refuse`, and by a command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from mb_schema.secrets import MASK, masked, masked_text

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""Empty mapping, as a default that no caller can modify."""
MAX_VALUE_LENGTH = 200
"""Maximum number of characters of one value in a message."""
MAX_MESSAGE_LENGTH = 1_000
"""Maximum number of characters of the message about one field."""
FILE_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Literals of Python and of YAML."""
_PYTHON_WORDS = re.compile(r"(?<==)(?:True|False|None)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Condition on the values of some fields, with an example that violates it and one that satisfies it."""

    id: str
    """Identifier, such as `V137`."""
    fields: tuple[str, ...]
    """Paths of the arguments of `test`, in order: `section.field` or `facts.name`. Messages name the first one."""
    test: Callable[..., str | None]
    """Function of these values that returns None, or a description of the problem."""
    parameters: tuple[str, ...] = ()
    """Keywords under which `test` receives the values of `fields`; empty: it receives them by position."""
    why: str
    """Reason, as the end of a sentence "because ..."."""
    fix: str
    """Instruction that resolves the problem, as a sentence."""
    severity: Literal["error", "warning"] = "error"
    """An error prevents the run; a warning does not."""
    fails: Mapping[str, object]
    """Example, path to value, that the rule rejects."""
    passes: Mapping[str, object]
    """Example, path to value, that the rule accepts."""
    fallback: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Path to the value that replaces a rejected one which the user did not set; empty: the rule only rejects."""
    implied_by: tuple[str, ...] = ()
    """Ids of rules, also of other packages: if one of them is violated, this one is redundant or recommends what the
    other rejects, and `check` leaves it out. A warning implies no error."""

    def message(self, values: Mapping[str, object]) -> str | None:
        """Return the description of the problem with these values, path to value; a missing path is None."""
        given = [values.get(path) for path in self.fields]
        keywords = getattr(self, "parameters", ())  # a rule may be any record with the other members
        return self.test(**dict(zip(keywords, given, strict=True))) if keywords else self.test(*given)

    def check(self, values: Mapping[str, object], *, origin: Mapping[str, str] = NOTHING) -> Problem | None:
        """Return the problem with these values, path to value; None if there is none. A missing path is None."""
        message = Rule.message(self, values)
        if message is None:
            return None
        given = {path: values.get(path) for path in self.fields}
        printable = {path: _without_secrets(path, value) for path, value in given.items()}
        if any(printable[path] is not value for path, value in given.items()):
            message = _message_without_secrets(self, message, given, printable)
        return Problem(
            id=self.id,
            severity=self.severity,
            fields=self.fields,
            message=_readable(message, printable),
            why=self.why,
            fix=self.fix,
            values=printable,
            origin=origin,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A rule that a configuration violates. `str` returns the sentence for the user."""

    id: str
    """Identifier of the rule."""
    severity: Literal["error", "warning"] = "error"
    """An error prevents the run."""
    fields: tuple[str, ...]
    """Paths that the rule reads. The message is about the first one."""
    message: str
    """Problem, with the values."""
    why: str
    """Reason, as the end of a sentence "because ..."."""
    fix: str
    """Instruction that resolves the problem."""
    values: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Value of each path."""
    origin: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Origin of each value, if known."""

    def to_dict(self) -> dict[str, object]:
        """Return the problem as plain data for JSON. Of an environment, only variables that the text names are kept."""
        words = {*re.findall(r"\w+", f"{self.message} {self.why} {self.fix}")}
        values = dict(self.values)
        if isinstance(env := values.get("facts.env"), Mapping):
            values["facts.env"] = {name: item for name, item in env.items() if name in words}
        return {
            "id": self.id,
            "severity": self.severity,
            "fields": list(self.fields),
            "message": self.message,
            "why": self.why,
            "fix": self.fix,
            "values": {path: plain(value) for path, value in values.items()},
            "origin": dict(self.origin),
        }

    @property
    def sentence(self) -> str:
        """Problem, reason and fix, without the path."""
        return f"{self.message}, because {self.why}. {self.fix}"

    @property
    def line(self) -> str:
        """The sentence with the identifier of the rule, as errors list it."""
        return f"[{self.id}] {self}"

    def __str__(self) -> str:
        return f"{self.fields[0].removeprefix('facts.')}: {self.sentence}"


class RuleError(ValueError):
    """Violated rules. `problems` contains all of them; the text has a line `[id] path: problem ...` for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.line for problem in self.problems))


def check(
    sections: Mapping[str, object],
    rules: Iterable[Rule],
    *,
    facts: Mapping[str, object] = NOTHING,
    origin: Callable[[str], str] | None = None,
) -> list[Problem]:
    """Return every problem that no other one implies, in the order of the rules. Does not modify anything.

    Args:
        sections: Section name to section: an object with attributes, a mapping, or None for an absent section.
        rules: Rules. A rule applies if every section that it reads is present, its first field exists, and every fact
            that it reads is known. A further field that a section does not have is None.
        facts: Values that no section contains, which rules read as `facts.name`.
        origin: Function that returns the origin of the value at a path, such as `run.yaml:12`.
    """
    known = {**sections, "facts": facts}
    found = ((rule, _apply(rule, known, origin)) for rule in rules if applies(rule, known))
    violated = [(rule, problem) for rule, problem in found if problem is not None]
    severities = {problem.id: problem.severity for _, problem in violated}
    return [problem for rule, problem in violated if not _is_implied(rule, problem, severities)]


def refuse(
    sections: Mapping[str, object],
    rules: Iterable[Rule],
    *,
    error: Callable[[Iterable[Problem]], Exception] = RuleError,
    facts: Mapping[str, object] = NOTHING,
) -> None:
    """Raise one error with every problem of severity "error". Arguments are those of `check`.

    Raises:
        RuleError: At least one rule is violated; `error` replaces the class.
    """
    problems = [problem for problem in check(sections, rules, facts=facts) if problem.severity == "error"]
    if problems:
        raise error(problems)


def explain(rule: Rule) -> str:
    """Return the fields, reason and fix of a rule, an example that fails with its message, and one that passes."""
    problem = Rule.check(rule, rule.fails)
    lines = [
        f"{rule.id} ({rule.severity})",
        f"reads:  {', '.join(rule.fields)}",
        f"why:    {rule.why}",
        f"fix:    {rule.fix}",
        "fails:",
        *_example(rule.fails),
        f"message: {rule.fields[0].removeprefix('facts.')}: {problem.message if problem else None}",
        "passes:",
        *_example(rule.passes),
    ]
    return "\n".join(lines)


def rules_in(module: Mapping[str, object]) -> tuple[Rule, ...]:
    """Return the rules that have a name in a module, given as its `globals()`, in the order of definition."""
    return tuple(value for value in module.values() if isinstance(value, Rule))


def applies(rule: Rule, sections: Mapping[str, object]) -> bool:
    """Return whether everything that a rule reads is present: its sections, its first field, and its facts.

    Facts are the section `facts`.
    """
    first, _, name = rule.fields[0].partition(".")
    section, leaf = sections.get(first), name.partition(".")[0]
    exists = not name or (leaf in section if isinstance(section, Mapping) else hasattr(section, leaf))
    return exists and all(_is_present(path, sections) for path in rule.fields)


def value_at(path: str, sections: Mapping[str, object]) -> object:
    """Return the value at a dotted path in sections that are objects or mappings, or None if there is no such field.

    Raises:
        KeyError: There is no such section.
    """
    name, *leaves = path.split(".")
    value = sections[name]
    for key in leaves:
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value


def plain(value: object) -> object:
    """Return a value as containers, numbers and text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def in_file_words(text: str) -> str:
    """Replace Python's literals after `=` by those of YAML, such as `=true` and `=null`, as they are in a file."""
    return _PYTHON_WORDS.sub(lambda found: FILE_WORDS[found[0]], text)


def truncate(text: str, most: int = MAX_VALUE_LENGTH) -> str:
    """Return the text, or its beginning and end with the number of omitted characters."""
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail]}... ({len(text) - most:,} more characters) ...{text[-tail:]}"


def _apply(rule: Rule, sections: Mapping[str, object], origin: Callable[[str], str] | None) -> Problem | None:
    values = {path: value_at(path, sections) for path in rule.fields}
    origins: dict[str, str] = {}
    if origin is not None:  # facts have none
        origins = {path: origin(path) for path in rule.fields if not path.startswith("facts.")}
    # Not `rule.check`: a rule may be any record with these members, such as one of the user.
    return Rule.check(rule, values, origin=origins)


def _is_implied(rule: Rule, problem: Problem, severities: Mapping[str, str]) -> bool:
    """Return whether a violated rule of `implied_by` makes a problem redundant; a warning implies no error.

    Args:
        rule: The rule of the problem.
        problem: The problem.
        severities: Id of each violated rule to its severity.
    """
    implying = ("error",) if problem.severity == "error" else ("error", "warning")
    return any(severities.get(id) in implying for id in getattr(rule, "implied_by", ()))


def _is_present(path: str, sections: Mapping[str, object]) -> bool:
    """Return whether there is the section of a path, or its fact, which is known if it is not None."""
    name, _, leaf = path.partition(".")
    section = sections.get(name)
    if name == "facts":
        return isinstance(section, Mapping) and section.get(leaf) is not None
    return section is not None


def _without_secrets(path: str, value: object) -> object:
    """Return a value with secrets masked; the same object if it holds none."""
    hidden = masked(path.rpartition(".")[2], value)
    return value if plain(hidden) == plain(value) else hidden


def _message_without_secrets(
    rule: Rule, message: str, values: Mapping[str, object], printable: Mapping[str, object]
) -> str:
    """Return the message about masked values; if they do not violate the rule, the message with secrets replaced.

    Args:
        rule: The violated rule.
        message: Its message about the values.
        values: Value of each path.
        printable: The same with secrets masked.
    """
    with suppress(TypeError, ValueError):  # a rule may compute with a number that is now the text of the mask
        found = Rule.message(rule, printable)
        if found is not None:
            return found
    for path, value in values.items():
        if isinstance(value, str | int | float) and printable[path] is not value:
            message = message.replace(str(value), MASK)
    return masked_text(message)


def _readable(message: str, values: Mapping[str, object]) -> str:
    """Return a message with the literals of YAML, in which long values are truncated."""
    message = in_file_words(message)
    if len(message) <= MAX_VALUE_LENGTH:
        return message
    for value in values.values():
        if isinstance(value, str) and len(value) > MAX_VALUE_LENGTH:
            message = message.replace(value, truncate(value))
    return truncate(message, MAX_MESSAGE_LENGTH)


def _example(values: Mapping[str, object]) -> Iterable[str]:
    """Yield the lines of an example as YAML."""
    if not values:
        yield "  # none of these fields is set"
    for section in dict.fromkeys(path.partition(".")[0] for path in values):
        note = "  # not in a file: set by options, the launcher or the machine" if section == "facts" else ""
        if section not in values:
            yield f"  {section}:{note}"
        for path, value in values.items():
            name = path.removeprefix(f"{section}.") if path != section else ""
            text = json.dumps(plain(value), ensure_ascii=False)
            if path.partition(".")[0] == section:
                yield f"    {name}: {text}" if name else f"  {section}: {text}"
