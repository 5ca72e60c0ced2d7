"""Rules on configuration values, and the check of a section against its rules."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from mb_metrics.errors import MetricsError
from mb_metrics.value_types import reject_wrong_types


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Condition that configuration values must satisfy.

    A rule with a `facts.` field depends on the machine; it applies if that fact is known.
    """

    id: str
    """V and a number if Megatron trainers have the same check, otherwise L and a number."""
    fields: tuple[str, ...]
    """Paths ("section.field") of the arguments of `test`, in this order."""
    test: Callable[..., str | None]
    """Function that returns None, or a description of the problem with the values."""
    why: str
    """Reason for the rule."""
    fix: str
    """Instruction for the user."""
    severity: Literal["error", "warning"] = "error"
    """An error rejects the run; a warning does not."""
    fails: Mapping[str, object]
    """Example, path to value, that the rule rejects."""
    passes: Mapping[str, object]
    """Example, path to value, that the rule accepts."""


class SectionError(MetricsError, ValueError):
    """Error raised when a section violates rules; the message has one line per rule."""


class MissingPackageError(MetricsError, ModuleNotFoundError):
    """Error raised when a section requires a package that is not installed."""


_INSTALLED = "_installed"


def reject_violations(values: object, *, section: str, rules: Iterable[Rule]) -> None:
    """Check a section against the rules of severity "error" that read only this section and installed packages.

    Raises:
        SectionError: at least one rule is violated; the message has a line *path: problem; reason. Fix.* per rule.
        MissingPackageError: the only problem is that packages are missing; same message format.
        FieldTypeError: a value has the wrong type.
    """
    reject_wrong_types(values, path=section)
    violated: list[str] = []
    missing: list[str] = []
    for rule in rules:
        paths = [path.partition(".") for path in rule.fields]
        is_local = all(owner == section or name.endswith(_INSTALLED) for owner, _, name in paths)
        if not is_local or paths[0][0] != section or rule.severity != "error":
            continue
        problem = rule.test(
            *(getattr(values, name) if owner == section else _is_installed(name) for owner, _, name in paths)
        )
        if problem is not None:
            needs_package = any(owner == "facts" for owner, _, _ in paths)
            line = f"{rule.fields[0]}: {problem} [{rule.id}]; {rule.why}. {rule.fix}"
            (missing if needs_package else violated).append(line)
    if violated:
        raise SectionError("\n".join([*violated, *missing]))
    if missing:
        raise MissingPackageError("\n".join(missing))


def _is_installed(fact: str) -> bool:
    package = fact.removesuffix(_INSTALLED)
    return package in sys.modules or find_spec(package) is not None
