"""State of the resolver: changes, conflicts, and the priority of each value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal

from mb_config.container.field_access import get_field, has_field, set_field
from mb_config.overrides.provenance import DEFAULT, Provenance, given_paths, remember_resolved
from mb_schema.rules import Problem
from mb_schema.secrets import MASK, is_secret, leaf, masked, masked_text
from mb_schema.sections import SET_IN_CODE


class Priority(IntEnum):
    """Origin of a value, in the order in which values replace each other: a higher one is kept."""

    COMPUTED = 0
    """A default of a class, or a value that resolving has set."""
    RECIPE = 1
    USER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A field that resolving set, or a request that it rejected."""

    field: str
    """Path of the field."""

    old: object
    """The previous value."""

    new: object
    """The new value."""

    why: str
    """The reason, with the id of the rule."""

    rule: str = ""
    """Id of the rule."""

    severity: Literal["info", "warning"] = "info"
    """A warning is a rejected request: `old` is the requested value, `new` the value that is kept."""

    def to_dict(self) -> dict[str, object]:
        """Return the change as plain data for JSON. `severity` is included for warnings only."""
        values = {"from": self._shown(self.old), "to": self._shown(self.new)}
        plain = {k: v if isinstance(v, int | float | str | None) else str(v) for k, v in values.items()}
        warned = {"severity": self.severity} if self.severity == "warning" else {}
        return {"field": self.field, **plain, "why": self.why, **warned}

    def __str__(self) -> str:
        old, new = self._shown(self.old), self._shown(self.new)
        if self.severity == "warning":
            return f"{self.field}: {old} is rejected, {new} is kept ({self.why})"
        return f"{self.field}: {old} -> {new} ({self.why})"

    def _shown(self, value: object) -> object:
        return masked(leaf(self.field), value)


@dataclass(kw_only=True)
class ResolverState:
    """A configuration that is being resolved. Values that the user set are not overwritten without a conflict."""

    config: Any
    """The sections."""

    provenance: Provenance
    """Origins of their values; receives each change."""

    changes: list[Change] = field(default_factory=list)
    """Changes so far."""

    rejected: list[Change] = field(default_factory=list)
    """Rejected requests."""

    problems: list[Problem] = field(default_factory=list)
    """Conflicts found so far."""

    def __post_init__(self) -> None:
        """Record values that are set in a section and missing from the provenance."""
        # a section that was set as a whole, such as mixed_precision=bf16_mixed, sets its fields
        noted = Provenance(dict(self.provenance.origins))
        for path, by in given_paths(self.config).items():
            if self.provenance.origin(path) == DEFAULT:
                whole = noted.origin_of_section(path) if by == SET_IN_CODE[0] else None
                self.provenance.note(path, whole or by)

    def priority(self, path: str) -> Priority:
        """Return the priority of a value by its origin."""
        if self.provenance.by_user(path):
            return Priority.USER
        return Priority.RECIPE if self.provenance.by_recipe(path) else Priority.COMPUTED

    def has(self, path: str) -> bool:
        """Return True if the section has the field."""
        return has_field(self.config, path)

    def get(self, path: str) -> Any:
        """Return the value at `section.field`; None if there is no such field."""
        return get_field(self.config, path)

    def set(self, path: str, value: object, *, rule: str, why: str) -> None:
        """Set a field. An equal value is not recorded as a change."""
        old = self.get(path)
        if old is value or (type(old) is type(value) and old == value):
            return
        set_field(self.config, path, value)
        self.record(path, old, value, rule=rule, why=why)

    def record(self, path: str, old: object, new: object, *, rule: str, why: str) -> None:
        """Record a change that was made."""
        self.changes.append(Change(field=path, old=old, new=new, rule=rule, why=f"{rule}: {why}"))
        self.provenance.note(path, f"resolve: {rule}")
        remember_resolved(self.config, path, new, rule=rule)

    def reject(self, path: str, *, requested: object, kept: object, rule: str, why: str) -> None:
        """Record a rejected request. It is not a change, and it is reported at each call."""
        self.rejected.append(
            Change(field=path, old=requested, new=kept, rule=rule, why=f"{rule}: {why}", severity="warning")
        )

    def net_changes(self) -> list[Change]:
        """Return one change per field, from its first value to its last, followed by the rejected requests.

        Fields whose value is the same as before are omitted.
        """
        net: dict[str, Change] = {}
        for change in self.changes:
            net[change.field] = replace(change, old=net.get(change.field, change).old)
        return [*(change for change in net.values() if change.old != change.new), *self.rejected]

    def conflict(self, paths: tuple[str, ...], *, rule: str, message: str, why: str, fix: str) -> None:
        """Record two settings that exclude each other. Secrets are masked, as those of a violated rule."""
        values = {path: self.get(path) if "." in path else getattr(self.config, path) for path in paths}
        for path, value in values.items():
            if is_secret(leaf(path), value):
                message = message.replace(str(value), MASK)
        self.problems.append(
            Problem(
                id=rule,
                fields=paths,
                message=masked_text(message),
                why=why,
                fix=fix,
                values={path: masked(leaf(path), value) for path, value in values.items()},
                origin={path: self.provenance.origin(path) for path in paths},
            )
        )
