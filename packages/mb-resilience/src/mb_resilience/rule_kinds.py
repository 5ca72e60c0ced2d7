"""Kinds of rules that several sections have: fields without effect, and the installed nvidia-resiliency-ext (NVRx)."""

from collections.abc import Iterable, Mapping
from dataclasses import fields

from mb_resilience.errors import SectionError
from mb_schema.rule_kinds import assigned, needs_package, no_effect, section_rule
from mb_schema.rules import Rule, refuse
from mb_schema.value_types import reject_wrong_types
from mb_schema.versions import release


def check_section(values: object, *, section: str, rules: Iterable[Rule]) -> None:
    """Check a section by the rules of severity "error" that read no other section.

    Raises:
        SectionError: rules are violated.
        FieldTypeError: values have a wrong type.
    """
    reject_wrong_types(values, path=section)
    refuse({section: values}, rules, error=SectionError)


MIN_NVRX_VERSION = (0, 3)
"""Oldest supported release of nvidia-resiliency-ext."""


def defaults_of(config: type) -> dict[str, object]:
    """Return the default of each field of a section, in their order."""
    return {field.name: field.default for field in fields(config)}


def without_effect(config: type, values: Mapping[str, object]) -> str | None:
    """Return which values differ from the defaults of a section, such as "spiky_loss_factor=3.0 has no effect".

    None if none of them does.
    """
    defaults = defaults_of(config)
    changed = {name: value for name, value in values.items() if value not in (None, defaults[name])}
    return f"{assigned(changed)} {'has' if len(changed) == 1 else 'have'} no effect" if changed else None


def unused_while_disabled(rule_id: str, section: str, config: type, *, switch: str) -> Rule:
    """Return a rule that warns about fields of a disabled section that differ from their defaults.

    Args:
        rule_id: id of the rule.
        section: name of the section.
        config: class of the section.
        switch: field that enables the section.
    """
    settings = {f"{section}.{name}": value for name, value in defaults_of(config).items() if name != switch}
    return no_effect(
        rule_id,
        f"{section}.{switch}",
        settings,
        why=f"{section}.{switch}=false disables the section",
        fix=f"Set {section}.{switch}=true, or remove these fields.",
        fails={next(iter(settings)): "something else"},
        severity="warning",
    )


def requires_nvrx(rule_id: str, switch: str, *, why: str, fix: str) -> Rule:
    """Return a rule that rejects an enabled feature without nvidia-resiliency-ext."""
    return needs_package(
        rule_id,
        [switch],
        "nvidia-resiliency-ext",
        fact="nvidia_resiliency_ext_installed",
        why=why,
        fix=fix,
    )


def requires_nvrx_version(rule_id: str, switch: str) -> Rule:
    """Return a rule that rejects an nvidia-resiliency-ext that is too old for an enabled feature."""

    def too_old(on: bool | None, *, nvidia_resiliency_ext_version: str) -> str | None:
        numbers = release(nvidia_resiliency_ext_version)
        if not on or not numbers or numbers >= MIN_NVRX_VERSION:
            return None
        return f"nvidia-resiliency-ext {nvidia_resiliency_ext_version} is installed"

    return section_rule(
        "",
        rule_id,
        paths={"on": switch},
        why="the functions that this package calls exist since version 0.3",
        fix=f"Install mb-resilience[nvrx], or set {switch}=false.",
        fails={"on": True, "nvidia_resiliency_ext_version": "0.2.1"},
        passes={"nvidia_resiliency_ext_version": "0.3.0"},
    )(too_old)
