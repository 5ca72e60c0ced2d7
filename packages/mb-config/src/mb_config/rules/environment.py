"""Rules on environment variables: the section `env_vars`, and the values that settings of the model require."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mb_schema.rule_kinds import config_rule, model_rule
from mb_schema.rules import Rule, rules_in
from mb_schema.versions import at_least

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables that torch reads. The second is the name since torch 2.9."""


def expandable_segments(env: Mapping[str, str]) -> str | None:
    """Return the variable that enables expandable segments, or None.

    torch ignores spaces in the value, and accepts only "True". The precedence of the variables depends on its version.
    """
    for name in ALLOCATOR_VARIABLES:
        if "expandable_segments:True" in env.get(name, "").replace(" ", "").split(","):
            return name
    return None


@config_rule(
    "V001",
    why="names of variables are not empty and contain no equals sign",
    fix="Write NAME: value.",
    fails={"env_vars": {"": "1"}},
    passes={"env_vars": {"NCCL_ALGO": "Ring"}},
)
def _no_variable_name(env_vars):
    wrong = [name for name in env_vars if not isinstance(name, str) or not name.strip() or "=" in name]
    return f"{wrong[0]!r} is not the name of a variable" if wrong else None


@config_rule(
    "V002",
    why="the values of environment variables are text",
    fix="Set each variable to text, a number or a boolean.",
    fails={"env_vars": {"NCCL_ALGO": ["Ring", "Tree"]}},
    passes={"env_vars": {"CUDA_DEVICE_MAX_CONNECTIONS": 1}},
)
def _no_variable_value(env_vars):
    for name, value in env_vars.items():
        if not isinstance(value, str | int | float):  # a bool is an int
            return f"{name} is a {type(value).__name__}, not text, a number or a boolean"
    return None


_LOADS_CODE = re.compile(
    r"LD_\w+|DYLD_\w+|PYTHON(PATH|HOME|STARTUP|BREAKPOINT|WARNINGS|INSPECT|USERBASE|EXECUTABLE)|PATH|BASH_ENV|ENV|HOME"
    r"|GCONV_PATH|XDG_CONFIG_HOME|(CUDA|NVTX)_INJECTION\d+_PATH|TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD|CC|CXX|TRITON_PTXAS_PATH"
    r"|AWS_(CONFIG|SHARED_CREDENTIALS)_FILE|FSSPEC_\w+"
)
_PLUGIN = re.compile(r"NCCL_\w*PLUGIN\w*")


@config_rule(
    "EV01",
    why="processes run the libraries, modules or programs that it names, and a configuration brings no code",
    fix="Set the variable in the shell.",
    fails={"env_vars": {"LD_PRELOAD": "/data/x.so"}},
    passes={"env_vars": {"NCCL_NET_PLUGIN": "ofi"}},
)
def _names_code(env_vars):
    for name, value in env_vars.items():
        if _LOADS_CODE.fullmatch(name) or (_PLUGIN.fullmatch(name) and "/" in str(value)):
            return f"{name} is set in a configuration"
    return None


def loads_code(variables: Mapping[str, object]) -> bool:
    """Return whether a variable names code that processes would run."""
    return _names_code.test(variables) is not None


ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")


LIBRARY_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",),
}
"""Values with which cuBLAS and Transformer Engine are deterministic. Resolving sets the first one if none is set."""


@model_rule(
    "V141",
    why="NCCL otherwise selects the algorithm, and with it the order of additions",
    fix="Set NCCL_ALGO=Ring in the shell or in env_vars, or model.deterministic_mode=false.",
    fails={"deterministic_mode": True, "env": {"NCCL_ALGO": "Ring,Tree"}},
    passes={"env": {"NCCL_ALGO": "Ring"}},
)
def _nondeterministic_nccl(deterministic_mode, dist__distributed_backend, *, env):
    algorithm = env.get("NCCL_ALGO")
    if not deterministic_mode or dist__distributed_backend == "gloo" or algorithm in ALGORITHMS:
        return None
    state = "it is unset" if algorithm is None else f"it is {algorithm}"
    return f"requires the environment variable NCCL_ALGO to be one of {', '.join(ALGORITHMS)}, but {state}"


@model_rule(
    "V142",
    why="cuBLAS and Transformer Engine otherwise select nondeterministic kernels",
    fix="Unset that variable: resolving sets it to a supported value.",
    fails={"deterministic_mode": True, "env": {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}},
    passes={"env": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}},
)
def _nondeterministic_libraries(deterministic_mode, *, env):
    if not deterministic_mode:
        return None
    for name, allowed in LIBRARY_SETTINGS.items():
        if env.get(name, allowed[0]) not in allowed:
            return f"requires {name}={' or '.join(allowed)}, not {env[name]}"
    return None


@model_rule(
    "V149",
    why="Megatron Core uses the first of its two offloading interfaces, which is disabled since version 2.10",
    fix="Set NVTE_CPU_OFFLOAD_V1=1 in the shell or in env_vars.",
    fails={"fine_grained_activation_offloading": True, "transformer_engine_version": "2.10.0", "env": {}},
    passes={"env": {"NVTE_CPU_OFFLOAD_V1": "1"}},
)
def _disabled_offloading(fine_grained_activation_offloading, *, transformer_engine_version, env):
    interface = env.get("NVTE_CPU_OFFLOAD_V1")
    if (
        not fine_grained_activation_offloading
        or not at_least(transformer_engine_version, 2, 10)
        or interface == "1"
    ):
        return None
    found = "it is unset" if interface is None else f"it is {interface}"
    return f"requires NVTE_CPU_OFFLOAD_V1=1 with Transformer Engine {transformer_engine_version}, but {found}"


GRAPH_REGISTER = "NCCL_GRAPH_REGISTER"
"""Variable with which NCCL registers the buffers of captured collectives, unless it is 0."""


def registers_growing_buffers(implementation: str | None, env: Mapping[str, str]) -> str | None:
    """Return the variable that enables expandable segments if graphs of layers are captured, otherwise None."""
    return expandable_segments(env) if implementation == "transformer_engine" else None


@model_rule(
    "V152b",
    why="NCCL would register buffers of a captured collective that torch's allocator remaps, and the replay would "
    "access unmapped memory",
    fix=f"Set {GRAPH_REGISTER}=0 or leave it unset (resolving sets it), or remove expandable_segments.",
    fails={
        "cuda_graph_impl": "transformer_engine",
        "env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True", GRAPH_REGISTER: "1"},
    },
    passes={"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True", GRAPH_REGISTER: "0"}},
)
def _growing_buffers_registered(cuda_graph_impl, *, env):
    variable = registers_growing_buffers(cuda_graph_impl, env)
    if variable is None or env.get(GRAPH_REGISTER, "0") == "0":
        return None
    return f"is transformer_engine with {variable}={env[variable]} and {GRAPH_REGISTER}={env[GRAPH_REGISTER]}"


RULES: tuple[Rule, ...] = rules_in(globals())
