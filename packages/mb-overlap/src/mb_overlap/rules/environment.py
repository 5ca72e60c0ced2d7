"""Rules on the environment variables that control concurrency between CUDA streams."""

from collections.abc import Mapping

from mb_overlap.env_vars import HOPPER, MAX_CONNECTIONS, generation, recommended_env_vars
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

_LAYOUT = (
    "model.tensor_model_parallel_size",
    "model.context_parallel_size",
    "model.pipeline_model_parallel_size",
    "model.expert_model_parallel_size",
    "ddp.use_megatron_fsdp",
    "facts.world_size",
    "facts.gpu",
    "facts.env",
)
_FSDP = ("ddp.use_megatron_fsdp", "facts.env")
_BOTH = (
    "ddp.use_megatron_fsdp",
    "model.tensor_model_parallel_size",
    "model.context_parallel_size",
    "facts.gpu",
)


def _queues_allow_fsdp(fsdp: bool | None, env: Mapping[str, str]) -> str | None:
    if not fsdp or env.get(MAX_CONNECTIONS) != "1":
        return None
    return f"is not supported with {MAX_CONNECTIONS}=1"


def _fsdp_without_tensor_parallel(fsdp: bool | None, tp: int | None, cp: int | None, gpu: str) -> str | None:
    major = generation(gpu)
    if not fsdp or major is None or major > HOPPER or ((tp or 1) < 2 and (cp or 1) < 2):
        return None
    return f"shares a {gpu} with tensor or context parallelism (tp={tp}, cp={cp})"


def _matches_recommendation(
    tp: int | None,
    cp: int | None,
    pp: int | None,
    ep: int | None,
    fsdp: bool | None,
    world_size: int,
    gpu: str,
    env: Mapping[str, str],
) -> str | None:
    if MAX_CONNECTIONS not in env or (ep or 1) > 1 or generation(gpu) is None:
        return None
    tp, cp, pp = tp or 1, cp or 1, pp or 1
    dp = max(1, world_size // (tp * cp * pp))
    recommended = recommended_env_vars(gpu=gpu, tp=tp, cp=cp, dp=dp, pp=pp, fsdp=bool(fsdp)).get(
        MAX_CONNECTIONS
    )
    if recommended is None or recommended == env[MAX_CONNECTIONS]:
        return None
    return f"overlaps best on a {gpu} with {MAX_CONNECTIONS}={recommended}, but it is {env[MAX_CONNECTIONS]}"


FSDP_QUEUES = rule(
    "O23",
    _FSDP,
    _queues_allow_fsdp,
    why="with a single hardware queue the parameter all-gathers cannot run concurrently with computation",
    fix=f"Unset {MAX_CONNECTIONS}, or set another value.",
    fails=(True, {MAX_CONNECTIONS: "1"}),
    passes=(True, {}),
)
"""Not in `RULES`: mb-config's V176 reports the same problem for a complete configuration."""

FSDP_AND_TENSOR_PARALLEL = rule(
    "O23a",
    _BOTH,
    _fsdp_without_tensor_parallel,
    why="up to Hopper their communication overlaps best with one hardware queue, and Megatron-FSDP needs several",
    fix="Use tensor_model_parallel_size=1 and context_parallel_size=1, or accept less overlap.",
    fails=(True, 2, 1, "h100"),
    passes=(True, 2, 1, "b200"),
    severity="warning",
)

QUEUES = rule(
    "O23b",
    _LAYOUT,
    _matches_recommendation,
    why="the number of hardware queues decides whether communication starts before the GEMM that hides it",
    fix=f"Leave {MAX_CONNECTIONS} unset: it is chosen before CUDA starts.",
    fails=(2, 1, 1, 1, False, 8, "h100", {MAX_CONNECTIONS: "8"}),
    passes=(2, 1, 1, 1, False, 8, "h100", {MAX_CONNECTIONS: "1"}),
    severity="warning",
)

RULES: tuple[Rule, ...] = (FSDP_AND_TENSOR_PARALLEL, QUEUES)
"""Rules of this file that no other package has."""
