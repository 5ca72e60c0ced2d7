"""Apply rules to sections and report every problem at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

from mb_config.masking import MASK, is_secret, leaf, masked, masked_text
from mb_config.message_text import MAX_MESSAGE_LENGTH, MAX_VALUE_LENGTH, truncate
from mb_config.value_types import reject_wrong_types

NOTHING: Mapping[str, Any] = MappingProxyType({})
_FILE_WORDS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_WORDS = re.compile(r"(?<==)(?:True|False|None)\b")


class RuleLike(Protocol):
    """What `check` needs of a rule; any record with these members will do."""

    @property
    def id(self) -> str:
        """Its number."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Paths of the values that it reads, the one to blame first."""

    @property
    def test(self) -> Callable[..., str | None]:
        """Takes those values in that order; returns None, or what is wrong."""

    @property
    def why(self) -> str:
        """Completes "because ..."."""

    @property
    def fix(self) -> str:
        """What to do, as a sentence."""

    @property
    def severity(self) -> Literal["error", "warning"]:
        """Whether it refuses the run."""

    @property
    def fails(self) -> Mapping[str, object]:
        """Values that it refuses."""

    @property
    def passes(self) -> Mapping[str, object]:
        """Values that it accepts."""


class OriginLookup(Protocol):
    """Tells where the value of a field came from."""

    def origin(self, path: str) -> str:
        """The place, such as `run.yaml:12`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One rule that a configuration breaks."""

    id: str
    """The rule."""

    severity: Literal["error", "warning"] = "error"
    """Whether it refuses the run."""

    fields: tuple[str, ...]
    """Paths that the rule reads, the one to blame first."""

    message: str
    """What is wrong, with the values."""

    why: str
    """The reason, completing "because ..."."""

    fix: str
    """What to do."""

    values: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Value of each path."""

    origin: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Where each value came from, as far as that is known."""

    def to_dict(self) -> dict[str, object]:
        """Plain containers, ready for JSON; secrets are masked."""
        return {
            "id": self.id,
            "severity": self.severity,
            "fields": list(self.fields),
            "message": self.message,
            "why": self.why,
            "fix": self.fix,
            "values": {path: self._shown(path, value) for path, value in self.values.items()},
            "origin": dict(self.origin),
        }

    def _shown(self, path: str, value: object) -> object:
        """The value without secrets; of an environment, the variables that the text speaks of."""
        if path == "facts.env" and isinstance(value, Mapping):
            words = {*re.findall(r"\w+", f"{self.message} {self.why} {self.fix}")}
            value = {name: item for name, item in value.items() if name in words}
        return plain(masked(leaf(path), value))

    def __str__(self) -> str:
        return f"{self.fields[0].removeprefix('facts.')}: {self.message}, because {self.why}. {self.fix}"


class ConfigError(ValueError):
    """A configuration that was read but must not run. `problems` holds each reason; the text lists them all."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"[{problem.id}] {problem}" for problem in self.problems))


def check(
    sections: Mapping[str, object],
    rules: Iterable[RuleLike],
    *,
    facts: Mapping[str, object] = NOTHING,
    provenance: OriginLookup | None = None,
) -> list[Problem]:
    """Every problem, in the order of the rules. Changes nothing.

    Args:
        sections: Section name to section: an object with attributes, or a mapping.
        rules: A rule is applied when each section that it reads is there and its first field exists; another
            field that a section lacks reads as None. A fact that is not known leaves the rule out.
        facts: What no section holds, read by rules as `facts.<name>`: `world_size`, `env`.
        provenance: Fills in where the values came from.
    """
    known = {**sections, "facts": facts}
    found = (_apply(rule, known, provenance) for rule in rules)
    return [problem for problem in found if problem is not None]


def reject(
    sections: Mapping[str, object], rules: Iterable[RuleLike], *, facts: Mapping[str, object] = NOTHING
) -> None:
    """Raise `ConfigError` with every problem that is an error; warnings pass.

    Raises:
        ConfigError: holds every problem that is an error.
        FieldTypeError: a section has values of a wrong type.
    """
    for name, section in sections.items():
        if getattr(section, "checks_types", False) is True:
            reject_wrong_types(section, path=name)
    errors = [problem for problem in check(sections, rules, facts=facts) if problem.severity == "error"]
    if errors:
        raise ConfigError(errors)


def _apply(rule: RuleLike, sections: Mapping[str, object], provenance: OriginLookup | None) -> Problem | None:
    if not applies(rule, sections):
        return None
    values = {path: value_at(path, sections) for path in rule.fields}
    message = rule.test(*values.values())
    if message is None:
        return None
    origin = {} if provenance is None else {path: provenance.origin(path) for path in _owned(rule.fields)}
    return Problem(
        id=rule.id,
        severity=rule.severity,
        fields=rule.fields,
        message=_shortened(_without_secrets(in_file_words(message), values), values),
        why=rule.why,
        fix=rule.fix,
        values=values,
        origin=origin,
    )


def in_file_words(text: str) -> str:
    """A rule of any package may write values as Python does; a reader has them in a file: `=true`, `=null`."""
    return _PYTHON_WORDS.sub(lambda found: _FILE_WORDS[found[0]], text)


def _without_secrets(message: str, values: Mapping[str, object]) -> str:
    """A rule need not know which of its values must not be printed."""
    for path, value in values.items():
        if is_secret(leaf(path), value):
            message = message.replace(str(value), MASK)
    return masked_text(message)


def _shortened(message: str, values: Mapping[str, object]) -> str:
    """A rule need not know how long its values are."""
    if len(message) <= MAX_VALUE_LENGTH:
        return message
    for value in values.values():
        text = value if isinstance(value, str) else ""
        if len(text) > MAX_VALUE_LENGTH:
            message = message.replace(text, truncate(text))
    return truncate(message, MAX_MESSAGE_LENGTH)


def applies(rule: RuleLike, sections: Mapping[str, object]) -> bool:
    """Whether everything that a rule reads is there; facts are the section `facts`."""
    return all(_readable(path, sections) for path in rule.fields) and _exists(rule.fields[0], sections)


def _readable(path: str, sections: Mapping[str, object]) -> bool:
    name, _, leaf = path.partition(".")
    section = sections.get(name)
    if name == "facts":
        return isinstance(section, Mapping) and section.get(leaf) is not None
    return section is not None


def _exists(path: str, sections: Mapping[str, object]) -> bool:
    name, _, leaf = path.partition(".")
    section = sections[name]
    if not leaf:
        return True  # a rule on the section as a whole
    return leaf in section if isinstance(section, Mapping) else hasattr(section, leaf.partition(".")[0])


def value_at(path: str, sections: Mapping[str, object]) -> object:
    """The value of a dotted path in sections that are objects or mappings; None where there is no such field."""
    name, *leaves = path.split(".")
    value = sections[name]
    for key in leaves:
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value


def _owned(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if not path.startswith("facts.")]


def plain(value: object) -> object:
    """A value as containers, numbers and text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)
