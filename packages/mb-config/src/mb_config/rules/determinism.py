"""Rules on deterministic mode."""

from __future__ import annotations

from collections.abc import Mapping

from mb_schema.rule_kinds import excludes, rule
from mb_schema.rules import Rule

ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")

LIBRARY_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",),
}
"""Values with which cuBLAS and Transformer Engine are deterministic. Resolving sets the first one if none is set."""


def _v141(deterministic: bool | None, env: Mapping[str, str], backend: str | None) -> str | None:
    found = env.get("NCCL_ALGO")
    if not deterministic or backend == "gloo" or found in ALGORITHMS:
        return None
    state = "it is unset" if found is None else f"it is {found}"
    return f"requires the environment variable NCCL_ALGO to be one of {', '.join(ALGORITHMS)}, but {state}"


def _v142(deterministic: bool | None, env: Mapping[str, str]) -> str | None:
    if not deterministic:
        return None
    for name, allowed in LIBRARY_SETTINGS.items():
        if env.get(name, allowed[0]) not in allowed:
            return f"requires {name}={' or '.join(allowed)}, not {env[name]}"
    return None


RULES: tuple[Rule, ...] = (
    excludes(
        "V140",
        {"model.deterministic_mode": True, "model.cross_entropy_loss_fusion": True},
        why="the order of additions in the fused loss varies",
        fix="Set model.cross_entropy_loss_fusion=false or model.deterministic_mode=false.",
        fails=(True, True),
        passes=(True, False),
    ),
    rule(
        "V141",
        ("model.deterministic_mode", "facts.env", "dist.distributed_backend"),
        _v141,
        why="NCCL otherwise selects the algorithm, and with it the order of additions",
        fix="Set NCCL_ALGO=Ring in the shell or in env_vars, or model.deterministic_mode=false.",
        fails=(True, {"NCCL_ALGO": "Ring,Tree"}),
        passes=(True, {"NCCL_ALGO": "Ring"}),
    ),
    rule(
        "V142",
        ("model.deterministic_mode", "facts.env"),
        _v142,
        why="cuBLAS and Transformer Engine otherwise select nondeterministic kernels",
        fix="Unset that variable: resolving sets it to a supported value.",
        fails=(True, {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}),
        passes=(True, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
    ),
)
