"""Rules on the environment variables that control concurrency between CUDA streams."""

from mb_overlap.env_vars import HOPPER, MAX_CONNECTIONS, generation, recommended_env_vars
from mb_schema.rule_kinds import ddp_rule, model_rule
from mb_schema.rules import Rule


@ddp_rule(
    "O23",
    why="with a single hardware queue the parameter all-gathers cannot run concurrently with computation",
    fix=f"Unset {MAX_CONNECTIONS}, or set another value.",
    fails={"use_megatron_fsdp": True, "env": {MAX_CONNECTIONS: "1"}},
    passes={"env": {}},
)
def single_queue_under_fsdp(use_megatron_fsdp, *, env):
    """Reject one hardware queue under Megatron-FSDP; not in `RULES`, because mb-config has V176."""
    if not use_megatron_fsdp or env.get(MAX_CONNECTIONS) != "1":
        return None
    return f"is not supported with {MAX_CONNECTIONS}=1"


@ddp_rule(
    "O23a",
    why="up to Hopper their communication overlaps best with one hardware queue, and Megatron-FSDP needs several",
    fix="Use tensor_model_parallel_size=1 and context_parallel_size=1, or accept less overlap.",
    fails={"use_megatron_fsdp": True, "tp": 2, "cp": 1, "gpu": "h100"},
    passes={"gpu": "b200"},
    severity="warning",
)
def _fsdp_with_tensor_parallel(use_megatron_fsdp, tp, cp, *, gpu):
    major = generation(gpu)
    if not use_megatron_fsdp or major is None or major > HOPPER or ((tp or 1) < 2 and (cp or 1) < 2):
        return None
    return f"shares a {gpu} with tensor or context parallelism (tp={tp}, cp={cp})"


@model_rule(
    "O23b",
    why="the number of hardware queues decides whether communication starts before the GEMM that hides it",
    fix=f"Leave {MAX_CONNECTIONS} unset: it is chosen before CUDA starts.",
    fails={"tp": 2, "world_size": 8, "gpu": "h100", "env": {MAX_CONNECTIONS: "8"}},
    passes={"env": {MAX_CONNECTIONS: "1"}},
    severity="warning",
)
def _other_number_of_queues(tp, cp, pp, ep, ddp__use_megatron_fsdp, *, world_size, gpu, env):
    if MAX_CONNECTIONS not in env or (ep or 1) > 1 or generation(gpu) is None:
        return None
    tp, cp, pp = tp or 1, cp or 1, pp or 1
    dp = max(1, world_size // (tp * cp * pp))
    recommended = recommended_env_vars(
        gpu=gpu, tp=tp, cp=cp, dp=dp, pp=pp, fsdp=bool(ddp__use_megatron_fsdp)
    ).get(MAX_CONNECTIONS)
    if recommended is None or recommended == env[MAX_CONNECTIONS]:
        return None
    return f"overlaps best on a {gpu} with {MAX_CONNECTIONS}={recommended}, but it is {env[MAX_CONNECTIONS]}"


RULES: tuple[Rule, ...] = (_fsdp_with_tensor_parallel, _other_number_of_queues)
"""Rules of this file that no other package has."""
