"""The work sheet of resolving: what changed, and who may overwrite whom."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mb_config.field_access import get_field, has_field, set_field
from mb_config.masking import leaf, masked
from mb_config.problems import Problem
from mb_config.provenance import DEFAULT, Provenance, given_paths, remember_resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field that resolving set, or one wish that it did not grant."""

    field: str
    """Its path."""

    old: object
    """The value before."""

    new: object
    """The value now."""

    why: str
    """The reason, with the rule's number."""

    rule: str = ""
    """That number."""

    severity: Literal["info", "warning"] = "info"
    """A warning is no change but a wish that was not granted: `field` is the wish, `new` is what stands instead."""

    def to_dict(self) -> dict[str, object]:
        """Plain containers, ready for JSON; `severity` is there where it is a warning."""
        values = {"from": self._shown(self.old), "to": self._shown(self.new)}
        plain = {k: v if isinstance(v, int | float | str | None) else str(v) for k, v in values.items()}
        warned = {"severity": self.severity} if self.severity == "warning" else {}
        return {"field": self.field, **plain, "why": self.why, **warned}

    def __str__(self) -> str:
        old, new = self._shown(self.old), self._shown(self.new)
        if self.severity == "warning":
            return f"{self.field}: {old} was asked for, {new} stands ({self.why})"
        return f"{self.field}: {old} -> {new} ({self.why})"

    def _shown(self, value: object) -> object:
        return masked(leaf(self.field), value)


@dataclass(kw_only=True)
class ResolverState:
    """A config being resolved. Nothing that the user set is overwritten here without a conflict being noted."""

    config: Any
    """The sections."""

    provenance: Provenance
    """Where their values came from; is told of each change."""

    changes: list[Change] = field(default_factory=list)
    """What was set so far."""

    rejected: list[Change] = field(default_factory=list)
    """Wishes that were not granted."""

    problems: list[Problem] = field(default_factory=list)
    """Conflicts found so far."""

    def __post_init__(self) -> None:
        """What sections remember and the provenance does not know was set in code."""
        for path in given_paths(self.config):
            if self.provenance.origin(path) == DEFAULT:
                self.provenance.note(path, "code")

    def priority(self, path: str) -> Literal[0, 1, 2]:
        """Weight of a value's origin: 2 the user's, 1 a recipe's, 0 a default or resolved."""
        if self.provenance.by_user(path):
            return 2
        return 1 if self.provenance.by_recipe(path) else 0

    def has(self, path: str) -> bool:
        """True if section and field are there."""
        return has_field(self.config, path)

    def get(self, path: str) -> Any:
        """The value at `section.field`."""
        return get_field(self.config, path)

    def set(self, path: str, value: object, *, rule: str, why: str) -> None:
        """Set a field; an equal value is no change."""
        old = self.get(path)
        if old is value or (type(old) is type(value) and old == value):
            return
        set_field(self.config, path, value)
        self.record(path, old, value, rule=rule, why=why)

    def record(self, path: str, old: object, new: object, *, rule: str, why: str) -> None:
        """Note a change that was made."""
        self.changes.append(Change(field=path, old=old, new=new, rule=rule, why=f"{rule}: {why}"))
        self.provenance.note(path, f"resolve: {rule}")
        remember_resolved(self.config, path, new, rule=rule)

    def reject(self, path: str, *, requested: object, kept: object, rule: str, why: str) -> None:
        """Note a wish that is not granted. It is no change, and it is told each time."""
        self.rejected.append(
            Change(field=path, old=requested, new=kept, rule=rule, why=f"{rule}: {why}", severity="warning")
        )

    def net_changes(self) -> list[Change]:
        """One change a field, from its first value to its last, then the wishes that were not granted.

        A field that ends as it began has none.
        """
        net: dict[str, Change] = {}
        for change in self.changes:
            net[change.field] = replace(change, old=net.get(change.field, change).old)
        return [*(change for change in net.values() if change.old != change.new), *self.rejected]

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
