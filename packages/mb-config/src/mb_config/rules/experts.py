"""Rules on the token dispatcher of mixture-of-experts models."""

from __future__ import annotations

from mb_config.rules.hardware import KNOWN, capability
from mb_schema.gpu_names import find_short_name
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

_FIELDS = ("model.moe_flex_dispatcher_backend", "model.moe_token_dispatcher_type", "facts.gpu")
_DEEPEP_BLACKWELL = ("b200", "b300")
"""Blackwell GPUs for which DeepEP is built."""


def _v159(backend: str | None, dispatcher: str | None, gpu: str) -> str | None:
    found = capability(gpu)
    if dispatcher != "flex" or backend != "deepep" or found is None:
        return None
    if found[0] in (8, 9) or find_short_name(gpu, KNOWN) in _DEEPEP_BLACKWELL:
        return None
    return f"deepep does not run on {gpu}"


def _v160(backend: str | None, dispatcher: str | None, gpu: str) -> str | None:
    found = capability(gpu)
    if dispatcher != "flex" or backend != "hybridep" or found is None or found[0] in (8, 9, 10):
        return None
    return f"hybridep does not run on {gpu}"


RULES: tuple[Rule, ...] = (
    rule(
        "V159",
        _FIELDS,
        _v159,
        why="its kernels are built for Ampere, Ada, Hopper, B200 and B300",
        fix="Set model.moe_flex_dispatcher_backend=hybridep or model.moe_token_dispatcher_type=alltoall.",
        fails=("deepep", "flex", "gb200"),
        passes=("deepep", "flex", "h100"),
    ),
    rule(
        "V160",
        _FIELDS,
        _v160,
        why="its kernels are built for Ampere, Ada, Hopper and Blackwell",
        fix="Set model.moe_token_dispatcher_type=alltoall.",
        fails=("hybridep", "flex", "v100"),
        passes=("hybridep", "flex", "gb200"),
    ),
)
