"""Rules on the token dispatcher of mixture-of-experts models."""

from __future__ import annotations

from mb_config._gpu_names import find_short_name
from mb_config.rules.hardware import KNOWN, capability
from mb_config.rules.rule import Rule

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
    Rule(
        id="V159",
        fields=_FIELDS,
        test=_v159,
        why="its kernels are built for Ampere, Ada, Hopper, B200 and B300",
        fix="Set model.moe_flex_dispatcher_backend=hybridep or model.moe_token_dispatcher_type=alltoall.",
        fails=dict(zip(_FIELDS, ("deepep", "flex", "gb200"), strict=True)),
        passes=dict(zip(_FIELDS, ("deepep", "flex", "h100"), strict=True)),
    ),
    Rule(
        id="V160",
        fields=_FIELDS,
        test=_v160,
        why="its kernels are built for Ampere, Ada, Hopper and Blackwell",
        fix="Set model.moe_token_dispatcher_type=alltoall.",
        fails=dict(zip(_FIELDS, ("hybridep", "flex", "v100"), strict=True)),
        passes=dict(zip(_FIELDS, ("hybridep", "flex", "gb200"), strict=True)),
    ),
)
