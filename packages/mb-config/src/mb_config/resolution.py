"""The work sheet of resolving: what changed, and who may overwrite whom."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mb_config.masking import leaf, masked
from mb_config.problems import Problem
from mb_config.provenance import DEFAULT, Provenance, given_paths
from mb_config.section import assign_quietly


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field that resolving set."""

    field: str
    """Its path."""

    old: object
    """The value before."""

    new: object
    """The value now."""

    why: str
    """The reason, with the rule's number."""

    def to_dict(self) -> dict[str, object]:
        """Plain containers, ready for JSON."""
        values = {"from": self._shown(self.old), "to": self._shown(self.new)}
        plain = {k: v if isinstance(v, int | float | str | None) else str(v) for k, v in values.items()}
        return {"field": self.field, **plain, "why": self.why}

    def __str__(self) -> str:
        return f"{self.field}: {self._shown(self.old)} -> {self._shown(self.new)} ({self.why})"

    def _shown(self, value: object) -> object:
        return masked(leaf(self.field), value)


@dataclass(kw_only=True)
class Resolution:
    """A config being resolved. Nothing that the user set is overwritten here without a conflict being noted."""

    config: Any
    """The sections."""

    provenance: Provenance
    """Where their values came from; is told of each change."""

    changes: list[Change] = field(default_factory=list)
    """What was set so far."""

    problems: list[Problem] = field(default_factory=list)
    """Conflicts found so far."""

    def __post_init__(self) -> None:
        """What sections remember and the provenance does not know was set in code."""
        for path in given_paths(self.config):
            if self.provenance.origin(path) == DEFAULT:
                self.provenance.note(path, "code")

    def rank(self, path: str) -> Literal[0, 1, 2]:
        """Weight of a value's origin: 2 the user's, 1 a recipe's, 0 a default or resolved."""
        if self.provenance.by_user(path):
            return 2
        return 1 if self.provenance.by_recipe(path) else 0

    def has(self, path: str) -> bool:
        """True if section and field are there."""
        section, _, name = path.partition(".")
        return hasattr(getattr(self.config, section), name)

    def get(self, path: str) -> Any:
        """The value at `section.field`."""
        section, _, name = path.partition(".")
        return getattr(getattr(self.config, section), name)

    def set(self, path: str, value: object, *, rule: str, why: str) -> None:
        """Set a field; an equal value is no change."""
        section, _, name = path.partition(".")
        old = self.get(path)
        if old is value or (type(old) is type(value) and old == value):
            return
        assign_quietly(getattr(self.config, section), name, value)
        self.record(path, old, value, rule=rule, why=why)

    def record(self, path: str, old: object, new: object, *, rule: str, why: str) -> None:
        """Note a change that was made."""
        self.changes.append(Change(field=path, old=old, new=new, why=f"{rule}: {why}"))
        self.provenance.note(path, f"resolve: {rule}")

    def net_changes(self) -> list[Change]:
        """One change a field, from its first value to its last; a field that ends as it began has none."""
        net: dict[str, Change] = {}
        for change in self.changes:
            net[change.field] = replace(change, old=net.get(change.field, change).old)
        return [change for change in net.values() if change.old != change.new]

    def conflict(self, paths: tuple[str, ...], *, rule: str, message: str, why: str, fix: str) -> None:
        """Note two wishes that exclude each other."""
        self.problems.append(
            Problem(
                id=rule,
                fields=paths,
                message=message,
                why=why,
                fix=fix,
                values={
                    path: self.get(path) if "." in path else getattr(self.config, path) for path in paths
                },
                origin={path: self.provenance.origin(path) for path in paths},
            )
        )
