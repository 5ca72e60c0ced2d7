"""Check of a section in isolation."""

import sys
from collections.abc import Iterable
from importlib.util import find_spec

from mb_metrics.errors import MissingPackageError, SectionError
from mb_schema.rules import Rule, check
from mb_schema.value_types import reject_wrong_types

_INSTALLED = "_installed"


def reject_violations(values: object, *, section: str, rules: Iterable[Rule]) -> None:
    """Check a section against the rules of severity "error" that read only this section and installed packages.

    Raises:
        SectionError: at least one rule is violated; the message has a line for each.
        MissingPackageError: the only problem is that packages are missing; the same message.
        FieldTypeError: a value has the wrong type.
    """
    reject_wrong_types(values, path=section)
    own = [rule for rule in rules if rule.fields[0].startswith(f"{section}.") and rule.severity == "error"]
    names = {path.partition(".")[2] for rule in own for path in rule.fields if path.endswith(_INSTALLED)}
    problems = check({section: values}, own, facts={name: _is_installed(name) for name in names})
    if not problems:
        return
    error = SectionError(problems)
    if all(any(path.startswith("facts.") for path in problem.fields) for problem in problems):
        raise MissingPackageError(str(error))
    raise error


def _is_installed(fact: str) -> bool:
    package = fact.removesuffix(_INSTALLED)
    return package in sys.modules or find_spec(package) is not None
