"""Rules on the memory of a GPU. The bytes are facts, which `memory_facts` computes from the plan of the run."""

from __future__ import annotations

from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_schema.gpu_names import find_short_name
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

GIB = 2**30
STATE, NEED, ALLOWED = "memory_of_state", "memory_of_run", "allow_oom"
"""Facts: bytes of weights, gradients and optimizer on the fullest rank; of everything; whether to start anyway.
`mb_plan.memory.facts` computes them."""


def _too_large(need: int | None, gpu: str | None, what: str) -> str | None:
    memory = GPU_MEMORY.get(find_short_name(gpu, GPU_MEMORY) or "") if gpu else None
    if need is None or memory is None or need <= memory.size:
        return None
    return f"{what} of the fullest rank need {need / GIB:,.1f} GiB, and {gpu} has {memory.size / GIB:,.1f}"


def _state(need: int | None, gpu: str | None, allowed: bool | None) -> str | None:
    return None if allowed else _too_large(need, gpu, "weights, gradients and optimizer")


def _all(need: int | None, gpu: str | None) -> str | None:
    return _too_large(need, gpu, "state, activations and overhead")


RULES: tuple[Rule, ...] = (
    rule(
        "PL01",
        (f"facts.{STATE}", "facts.gpu", f"facts.{ALLOWED}"),
        _state,
        why="they are allocated before the first step",
        fix="Shard the model over more GPUs (tensor, pipeline or expert parallelism), or use the distributed "
        "optimizer; --allow-oom starts anyway.",
        fails=(200 * GIB, "h100", False),
        passes=(40 * GIB, "h100", False),
    ),
    rule(
        "PL02",
        (f"facts.{NEED}", "facts.gpu"),
        _all,
        why="the plan counts what autograd keeps, CUDA, NCCL and fragmentation",
        fix="Lower train.micro_batch_size, recompute activations, or shard the model over more GPUs; `plan` shows the "
        "parts.",
        severity="warning",
        fails=(100 * GIB, "h100"),
        passes=(40 * GIB, "h100"),
    ),
)
