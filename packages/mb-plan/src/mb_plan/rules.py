"""Rules on the memory of a GPU and on checkpoints. The facts are those of `planned_facts`."""

from __future__ import annotations

from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_schema.gpu_names import find_short_name
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

GIB = 2**30
STATE, NEED, ALLOWED = "memory_of_state", "memory_of_run", "allow_oom"
"""Facts: bytes of weights, gradients and optimizer on the fullest rank; of everything; whether to start anyway.
`mb_plan.facts` computes them."""
INTERVAL, LOST, CHECKPOINTS, DISK = (
    "best_save_interval",
    "lost_hours",
    "checkpoints_on_disk",
    "bytes_of_checkpoints",
)
"""Facts: steps between checkpoints that lose the least time; the most hours that a failure loses; the largest number of
checkpoints on disk at once, and their bytes."""
MAX_LOST_HOURS = 1.5
MAX_CHECKPOINTS, MAX_DISK = 20, 10 * 2**40


def _too_large(need: int | None, gpu: str | None, what: str) -> str | None:
    memory = GPU_MEMORY.get(find_short_name(gpu, GPU_MEMORY) or "") if gpu else None
    if need is None or memory is None or need <= memory.size:
        return None
    return f"{what} of the fullest rank need {need / GIB:,.1f} GiB, and {gpu} has {memory.size / GIB:,.1f}"


def _state(need: int | None, gpu: str | None, allowed: bool | None) -> str | None:
    return None if allowed else _too_large(need, gpu, "weights, gradients and optimizer")


def _all(need: int | None, gpu: str | None) -> str | None:
    return _too_large(need, gpu, "state, activations and overhead")


def loses_little(interval: int | None, best: int | None, hours: float | None) -> str | None:
    """Check that a failure does not lose much more work than it has to."""
    if not interval or best is None or hours is None or hours <= MAX_LOST_HOURS or interval < 2 * best:
        return None
    return f"save_interval={interval}: a failure loses up to {hours:,.1f} h of all GPUs; {best} loses the least time"


def fits_disk(kept: int | None, checkpoints: int | None, size: int | None) -> str | None:
    """Check that a run which keeps all its checkpoints does not fill a file system."""
    if kept != -1 or not checkpoints or size is None or checkpoints <= MAX_CHECKPOINTS or size <= MAX_DISK:
        return None
    return f"most_recent_k=-1 keeps all {checkpoints:,} checkpoints, {size / 2**40:,.1f} TiB"


RULES: tuple[Rule, ...] = (
    rule(
        "PL01",
        (f"facts.{STATE}", "facts.gpu", f"facts.{ALLOWED}"),
        _state,
        why="they are allocated before the first step",
        fix="Shard the model over more GPUs (tensor, pipeline or expert parallelism), or use the distributed "
        "optimizer; `plan` names the cheapest change. --allow-oom starts anyway.",
        fails=(200 * GIB, "h100", False),
        passes=(40 * GIB, "h100", False),
    ),
    rule(
        "PL02",
        (f"facts.{NEED}", "facts.gpu"),
        _all,
        why="the plan counts what autograd keeps, CUDA, NCCL and fragmentation",
        fix="Lower train.micro_batch_size, recompute activations, or shard the model over more GPUs; `plan` names the "
        "cheapest change.",
        severity="warning",
        fails=(100 * GIB, "h100"),
        passes=(40 * GIB, "h100"),
    ),
    rule(
        "PL03",
        ("checkpoint.save_interval", f"facts.{INTERVAL}", f"facts.{LOST}"),
        loses_little,
        why="what was trained since the last complete checkpoint is lost when a GPU, a node or the job fails",
        fix="Set checkpoint.save_interval=auto, or to fewer steps.",
        severity="warning",
        fails=(500, 100, 4.0),
        passes=(150, 100, 1.2),
    ),
    rule(
        "PL04",
        ("checkpoint.most_recent_k", f"facts.{CHECKPOINTS}", f"facts.{DISK}"),
        fits_disk,
        why="a full file system ends the run, and often those of others",
        fix="Set checkpoint.most_recent_k, such as 3, and checkpoint.save_retain_interval for further ones.",
        severity="warning",
        fails=(-1, 600, 500 * 2**40),
        passes=(3, 4, 4 * 2**40),
    ),
)
