"""Rules on the section `env_vars`."""

from __future__ import annotations

from collections.abc import Mapping

from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule


def _v001(variables: Mapping[object, object]) -> str | None:
    wrong = [name for name in variables if not isinstance(name, str) or not name.strip() or "=" in name]
    return f"{wrong[0]!r} is not the name of a variable" if wrong else None


def _v002(variables: Mapping[str, object]) -> str | None:
    for name, value in variables.items():
        if not isinstance(value, str | int | float):  # a bool is an int
            return f"{name} is a {type(value).__name__}, not text, a number or a boolean"
    return None


RULES: tuple[Rule, ...] = (
    rule(
        "V001",
        "env_vars",
        _v001,
        why="names of variables are not empty and contain no equals sign",
        fix="Write NAME: value.",
        fails=({"": "1"},),
        passes=({"NCCL_ALGO": "Ring"},),
    ),
    rule(
        "V002",
        "env_vars",
        _v002,
        why="the values of environment variables are text",
        fix="Set each variable to text, a number or a boolean.",
        fails=({"NCCL_ALGO": ["Ring", "Tree"]},),
        passes=({"CUDA_DEVICE_MAX_CONNECTIONS": 1},),
    ),
)
