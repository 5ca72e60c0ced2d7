"""Check of a section in isolation."""

import sys
from collections.abc import Collection
from importlib.util import find_spec

from mb_metrics.errors import MissingPackageError, SectionError
from mb_schema.rules import Rule, refuse
from mb_schema.value_types import reject_wrong_types

_INSTALLED = "_installed"


def reject_violations(values: object, *, section: str, rules: Collection[Rule]) -> None:
    """Check a section against the rules of severity "error" that read only this section and installed packages.

    Raises:
        SectionError: at least one rule is violated; the message has a line for each.
        MissingPackageError: the only problem is that packages are missing; the same message.
        FieldTypeError: a value has the wrong type.
    """
    reject_wrong_types(values, path=section)
    paths = {path for rule in rules for path in rule.fields if path.endswith(_INSTALLED)}
    facts = {path.removeprefix("facts."): _is_installed(path) for path in paths}
    try:
        refuse({section: values}, rules, error=SectionError, facts=facts)
    except SectionError as error:
        if all(any(path in paths for path in problem.fields) for problem in error.problems):
            raise MissingPackageError(str(error)) from None
        raise


def _is_installed(path: str) -> bool:
    package = path.removeprefix("facts.").removesuffix(_INSTALLED)
    return package in sys.modules or find_spec(package) is not None
