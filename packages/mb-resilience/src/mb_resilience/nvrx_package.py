"""Rules on the installed nvidia-resiliency-ext (NVRx), which several sections need."""

import re

from mb_schema.rule_kinds import needs_package, rule
from mb_schema.rules import Rule

MIN_NVRX_VERSION = (0, 3)
"""Oldest supported release of nvidia-resiliency-ext."""

_VERSION = "facts.nvidia_resiliency_ext_version"


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
