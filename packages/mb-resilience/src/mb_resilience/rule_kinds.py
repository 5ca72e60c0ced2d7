"""Kinds of rules that several sections have: fields without effect, and the installed nvidia-resiliency-ext (NVRx)."""

import re
from collections.abc import Mapping

from mb_schema.rule_kinds import as_warning, needs_package, no_effect, rule
from mb_schema.rules import Rule

Defaults = Mapping[str, object]
"""Default of each field of a section, by path such as "ft.simulate_fault", in the order of the fields."""

MIN_NVRX_VERSION = (0, 3)
"""Oldest supported release of nvidia-resiliency-ext."""

_VERSION = "facts.nvidia_resiliency_ext_version"


def without_effect(settings: list[str]) -> str | None:
    """Return that the settings, such as "spiky_loss_factor=3.0", have no effect; None if there are none."""
    return f"{', '.join(settings)} {'has' if len(settings) == 1 else 'have'} no effect" if settings else None


def unused_while_disabled(rule_id: str, defaults: Defaults, *, switch: str) -> Rule:
    """Return a rule that warns about fields of a disabled section that differ from their defaults.

    Args:
        rule_id: id of the rule.
        defaults: defaults of all fields of the section, the switch included.
        switch: path of the field that enables the section.
    """
    others = {path: default for path, default in defaults.items() if path != switch}
    changed = ("something else", *[*others.values()][1:])
    return as_warning(
        no_effect(
            rule_id,
            switch,
            others,
            why=f"{switch}=false disables the section",
            fix=f"Set {switch}=true, or remove these fields.",
            fails=(False, *changed),
            passes=(True, *changed),
        )
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
    return rule(
        rule_id,
        (switch, _VERSION),
        lambda on, installed: _older_than_supported(installed) if on else None,
        why="the functions that this package calls exist since version 0.3",
        fix=f"Install mb-resilience[nvrx], or set {switch}=false.",
        fails=(True, "0.2.1"),
        passes=(True, "0.3.0"),
    )


def _older_than_supported(version: str) -> str | None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= MIN_NVRX_VERSION:
        return None
    return f"nvidia-resiliency-ext {version} is installed"
