"""What a rule is, and a section held to its rules."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from mb_metrics.value_types import reject_wrong_types


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold.

    A rule with a `facts.` field is about the machine; it applies where that fact is known.
    """

    id: str
    """V and a number where Megatron trainers have the same check, else L and a number."""
    fields: tuple[str, ...]
    """Paths ("section.field") of the values that the test gets, in this order."""
    test: Callable[..., str | None]
    """Returns None, or what is wrong, with the values."""
    why: str
    """The reason."""
    fix: str
    """What to do."""
    severity: Literal["error", "warning"] = "error"
    """Whether the run is refused."""
    fails: Mapping[str, object]
    """An example, path to value, that the rule refuses."""
    passes: Mapping[str, object]
    """An example that it accepts."""


class SectionError(ValueError):
    """A section breaks rules; the message has all of them, one a line."""


class MissingPackageError(ModuleNotFoundError):
    """A section asks for a package that is not installed."""


_INSTALLED = "_installed"


def refuse(values: object, *, section: str, rules: Iterable[Rule]) -> None:
    """Refuse a section by the rules of severity "error" that read nothing else, but for which packages are installed.

    Raises:
        SectionError: with a line *where: what; why. What to do.* for each broken rule.
        MissingPackageError: nothing is wrong but that packages are missing; the same.
        FieldTypeError: values have a wrong type.
    """
    reject_wrong_types(values, path=section)
    broken: list[str] = []
    missing: list[str] = []
    for rule in rules:
        asked = [path.partition(".") for path in rule.fields]
        alone = all(owner == section or name.endswith(_INSTALLED) for owner, _, name in asked)
        if not alone or asked[0][0] != section or rule.severity != "error":
            continue
        problem = rule.test(
            *(getattr(values, name) if owner == section else _is_installed(name) for owner, _, name in asked)
        )
        if problem is not None:
            about_a_package = any(owner == "facts" for owner, _, _ in asked)
            line = f"{rule.fields[0]}: {problem} [{rule.id}]; {rule.why}. {rule.fix}"
            (missing if about_a_package else broken).append(line)
    if broken:
        raise SectionError("\n".join([*broken, *missing]))
    if missing:
        raise MissingPackageError("\n".join(missing))


def _is_installed(fact: str) -> bool:
    package = fact.removesuffix(_INSTALLED)
    return package in sys.modules or find_spec(package) is not None
