"""Application of rules to sections. All problems are reported together."""

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
    """Interface of a rule as `check` uses it. Any record with these members is accepted."""

    @property
    def id(self) -> str:
        """Id of the rule."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Paths of the values that the rule reads. Messages begin with the first one."""

    @property
    def test(self) -> Callable[..., str | None]:
        """Function of those values in that order. Returns None, or a text that describes the problem."""

    @property
    def why(self) -> str:
        """The reason, as the end of a sentence "because ..."."""

    @property
    def fix(self) -> str:
        """The fix, as a sentence."""

    @property
    def severity(self) -> Literal["error", "warning"]:
        """An error prevents the run."""

    @property
    def fails(self) -> Mapping[str, object]:
        """Example of values that the rule rejects."""

    @property
    def passes(self) -> Mapping[str, object]:
        """Example of values that the rule accepts."""


class OriginLookup(Protocol):
    """Lookup of the origin of a value."""

    def origin(self, path: str) -> str:
        """Return the origin, such as `run.yaml:12`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A rule that a configuration violates."""

    id: str
    """Id of the rule."""

    severity: Literal["error", "warning"] = "error"
    """An error prevents the run."""

    fields: tuple[str, ...]
    """Paths that the rule reads. The message is about the first one."""

    message: str
    """What is wrong, with the values."""

    why: str
    """The reason, as the end of a sentence "because ..."."""

    fix: str
    """The fix."""

    values: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Value of each path."""

    origin: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Origin of each value, if known."""

    def to_dict(self) -> dict[str, object]:
        """Return the problem as plain data for JSON. Secrets are masked."""
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
        """Return the value without secrets. Of an environment, only variables that the text names are kept."""
        if path == "facts.env" and isinstance(value, Mapping):
            words = {*re.findall(r"\w+", f"{self.message} {self.why} {self.fix}")}
            value = {name: item for name, item in value.items() if name in words}
        return plain(masked(leaf(path), value))

    def __str__(self) -> str:
        return f"{self.fields[0].removeprefix('facts.')}: {self.message}, because {self.why}. {self.fix}"


class ConfigError(ValueError):
    """An invalid configuration. `problems` contains every problem; the text lists them all."""

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
    """Return every problem, in the order of the rules. Does not modify anything.

    Args:
        sections: Section name to section: an object with attributes, or a mapping.
        rules: Rules. A rule is applied if every section that it reads is present and its first field exists. Other
            fields that a section does not have are None. A rule that reads an unknown fact is skipped.
        facts: Values that no section contains, which rules read as `facts.<name>`: `world_size`, `env`.
        provenance: Origins of the values.
    """
    known = {**sections, "facts": facts}
    found = (_apply(rule, known, provenance) for rule in rules)
    return [problem for problem in found if problem is not None]


def reject(
    sections: Mapping[str, object], rules: Iterable[RuleLike], *, facts: Mapping[str, object] = NOTHING
) -> None:
    """Raise `ConfigError` if there are errors. Warnings are ignored.

    Raises:
        ConfigError: If rules are violated; contains every error.
        FieldTypeError: If a section has values of a wrong type.
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
    """Replace Python's literals after `=` by those of YAML, such as `=true` and `=null`, as they are in a file."""
    return _PYTHON_WORDS.sub(lambda found: _FILE_WORDS[found[0]], text)


def _without_secrets(message: str, values: Mapping[str, object]) -> str:
    """Mask secrets in a message, so that rules need not know which of their values are secret."""
    for path, value in values.items():
        if is_secret(leaf(path), value):
            message = message.replace(str(value), MASK)
    return masked_text(message)


def _shortened(message: str, values: Mapping[str, object]) -> str:
    """Truncate long values in a message, so that rules need not limit their length."""
    if len(message) <= MAX_VALUE_LENGTH:
        return message
    for value in values.values():
        text = value if isinstance(value, str) else ""
        if len(text) > MAX_VALUE_LENGTH:
            message = message.replace(text, truncate(text))
    return truncate(message, MAX_MESSAGE_LENGTH)


def applies(rule: RuleLike, sections: Mapping[str, object]) -> bool:
    """Return True if everything that a rule reads is present. Facts are the section `facts`."""
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
        return True  # the rule reads the complete section
    return leaf in section if isinstance(section, Mapping) else hasattr(section, leaf.partition(".")[0])


def value_at(path: str, sections: Mapping[str, object]) -> object:
    """Return the value at a dotted path in sections that are objects or mappings, or None if there is no such field."""
    name, *leaves = path.split(".")
    value = sections[name]
    for key in leaves:
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value


def _owned(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if not path.startswith("facts.")]


def plain(value: object) -> object:
    """Return a value as containers, numbers and text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)
