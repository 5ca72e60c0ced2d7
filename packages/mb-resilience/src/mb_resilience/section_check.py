"""Check of a section by itself, for `finalize()` and for functions that are called with a section."""

from collections.abc import Iterable

from mb_resilience.errors import SectionError
from mb_schema.rules import Rule, refuse
from mb_schema.value_types import reject_wrong_types


def check_section(values: object, *, section: str, rules: Iterable[Rule]) -> None:
    """Check a section by the rules of severity "error" that read no other section.

    Raises:
        SectionError: rules are violated.
        FieldTypeError: values have a wrong type.
    """
    reject_wrong_types(values, path=section)
    refuse({section: values}, rules, error=SectionError)
