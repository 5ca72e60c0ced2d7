"""Rules on the section `env_vars`."""

from __future__ import annotations

import re
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


_LOADS_CODE = re.compile(
    r"LD_\w+|DYLD_\w+|PYTHON(PATH|HOME|STARTUP|BREAKPOINT|WARNINGS|INSPECT|USERBASE|EXECUTABLE)|PATH|BASH_ENV|ENV|HOME"
    r"|GCONV_PATH|XDG_CONFIG_HOME|(CUDA|NVTX)_INJECTION\d+_PATH|TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD|CC|CXX|TRITON_PTXAS_PATH"
    r"|AWS_(CONFIG|SHARED_CREDENTIALS)_FILE|FSSPEC_\w+"
)
_PLUGIN = re.compile(r"NCCL_\w*PLUGIN\w*")


def _loads_code(variables: Mapping[str, object]) -> str | None:
    for name, value in variables.items():
        if _LOADS_CODE.fullmatch(name) or (_PLUGIN.fullmatch(name) and "/" in str(value)):
            return f"{name} is set in a configuration"
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
    rule(
        "EV01",
        "env_vars",
        _loads_code,
        why="processes run the libraries, modules or programs that it names, and a configuration brings no code",
        fix="Set the variable in the shell.",
        fails=({"LD_PRELOAD": "/data/x.so"},),
        passes=({"NCCL_NET_PLUGIN": "ofi"},),
    ),
)
