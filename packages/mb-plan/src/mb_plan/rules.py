"""Rules on the memory of a GPU and on checkpoints. The facts are those of `planned_facts`."""

from __future__ import annotations

from functools import partial

from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_schema.gpu_names import find_short_name
from mb_schema.rule_kinds import facts_rule, section_rule
from mb_schema.rules import Rule, rules_in

checkpoint_rule = partial(section_rule, "checkpoint")

GIB = 2**30
MAX_LOST_HOURS = 1.5
MAX_CHECKPOINTS, MAX_DISK = 20, 10 * 2**40


def _too_large(what: str, size: int | None, gpu: str | None) -> str | None:
    memory = GPU_MEMORY.get(find_short_name(gpu, GPU_MEMORY) or "") if gpu else None
    if size is None or memory is None or size <= memory.size:
        return None
    return f"{what} of the fullest rank need {size / GIB:,.1f} GiB, and {gpu} has {memory.size / GIB:,.1f}"


@facts_rule(
    "PL01",
    why="they are allocated before the first step",
    fix="Shard the model over more GPUs (tensor, pipeline or expert parallelism), or use the distributed "
    "optimizer; `plan` names the cheapest change. --allow-oom starts anyway.",
    fails={"memory_of_state": 200 * GIB, "gpu": "h100", "allow_oom": False},
    passes={"memory_of_state": 40 * GIB},
)
def _state_too_large(memory_of_state, gpu, allow_oom):
    return None if allow_oom else _too_large("weights, gradients and optimizer", memory_of_state, gpu)


@facts_rule(
    "PL02",
    why="the plan counts what autograd keeps, CUDA, NCCL and fragmentation",
    fix="Lower train.micro_batch_size, recompute activations, or shard the model over more GPUs; `plan` names the "
    "cheapest change.",
    fails={"memory_of_run": 100 * GIB, "gpu": "h100"},
    passes={"memory_of_run": 40 * GIB},
    severity="warning",
)
def _run_too_large(memory_of_run, gpu):
    return _too_large("state, activations and overhead", memory_of_run, gpu)


@checkpoint_rule(
    "PL03",
    why="what was trained since the last complete checkpoint is lost when a GPU, a node or the job fails",
    fix="Set checkpoint.save_interval=auto, or to fewer steps.",
    fails={"save_interval": 500, "best_save_interval": 100, "lost_hours": 4.0},
    passes={"save_interval": 150, "lost_hours": 1.2},
    severity="warning",
)
def _failure_loses_hours(save_interval, *, best_save_interval, lost_hours):
    if (
        not save_interval
        or best_save_interval is None
        or lost_hours is None
        or lost_hours <= MAX_LOST_HOURS
        or save_interval < 2 * best_save_interval
    ):
        return None
    return (
        f"save_interval={save_interval}: a failure loses up to {lost_hours:,.1f} h of all GPUs; "
        f"{best_save_interval} loses the least time"
    )


@checkpoint_rule(
    "PL04",
    why="a full file system ends the run, and often those of others",
    fix="Set checkpoint.most_recent_k, such as 3, and checkpoint.save_retain_interval for further ones.",
    fails={"most_recent_k": -1, "checkpoints_on_disk": 600, "bytes_of_checkpoints": 500 * 2**40},
    passes={"most_recent_k": 3, "checkpoints_on_disk": 4, "bytes_of_checkpoints": 4 * 2**40},
    severity="warning",
)
def _checkpoints_fill_disk(most_recent_k, *, checkpoints_on_disk, bytes_of_checkpoints):
    if (
        most_recent_k != -1
        or not checkpoints_on_disk
        or bytes_of_checkpoints is None
        or checkpoints_on_disk <= MAX_CHECKPOINTS
        or bytes_of_checkpoints <= MAX_DISK
    ):
        return None
    return (
        f"most_recent_k=-1 keeps all {checkpoints_on_disk:,} checkpoints, "
        f"{bytes_of_checkpoints / 2**40:,.1f} TiB"
    )


RULES: tuple[Rule, ...] = rules_in(globals())
