"""Rules on the environment variables that a configuration sets."""

from __future__ import annotations

from collections.abc import Mapping

from mb_config.rules.rule import Rule


def _v001(variables: Mapping[object, object]) -> str | None:
    wrong = [name for name in variables if not isinstance(name, str) or not name.strip() or "=" in name]
    return f"{wrong[0]!r} is no name of a variable" if wrong else None


def _v002(variables: Mapping[str, object]) -> str | None:
    for name, value in variables.items():
        if not isinstance(value, str | int | float):  # a bool is an int
            return f"{name} is a {type(value).__name__}, neither text, number nor switch"
    return None


RULES: tuple[Rule, ...] = (
    Rule(
        id="V001",
        fields=("env_vars",),
        test=_v001,
        why="a variable is found by a name that is not empty and has no equals sign",
        fix="Write NAME: value.",
        fails={"env_vars": {"": "1"}},
        passes={"env_vars": {"NCCL_ALGO": "Ring"}},
    ),
    Rule(
        id="V002",
        fields=("env_vars",),
        test=_v002,
        why="the environment holds text",
        fix="Give each variable one text, number or switch.",
        fails={"env_vars": {"NCCL_ALGO": ["Ring", "Tree"]}},
        passes={"env_vars": {"CUDA_DEVICE_MAX_CONNECTIONS": 1}},
    ),
)
