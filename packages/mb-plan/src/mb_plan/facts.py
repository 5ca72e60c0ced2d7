"""Facts that the plan of a run gives to rules, and to decisions on what it can keep in memory and when it saves."""

from __future__ import annotations

from collections.abc import Mapping

from mb_plan.errors import PlanError
from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_plan.memory.resource_plan import ResourcePlan, make_plan
from mb_plan.shape.fields import read_field
from mb_plan.time.gpus import GPU_SPEEDS
from mb_plan.time.prediction import try_predict
from mb_plan.time.saves import plan_saves
from mb_schema.gpu_names import find_short_name


def planned_facts(
    sections: Mapping[str, object], facts: Mapping[str, object], *, saves: bool = True
) -> dict[str, object]:
    """Return the facts about a resolved run on GPUs: its memory and, if its step is predicted, its checkpoints.

    Empty without a GPU, or if the run is not planned. Of the fullest rank: `memory_of_state` (weights, gradients and
    optimizer), `memory_of_tensors` (without overhead) and `memory_of_run`, in bytes, and `memory_of_gpu`. Of the
    checkpoints: `best_save_interval`, the steps that lose the least time, with its `save_interval_reason`;
    `lost_hours`, the most that a failure loses; `checkpoints_on_disk`, the most at once, and `bytes_of_checkpoints`.

    Args:
        sections: The resolved sections, as for `make_plan`.
        facts: `gpu`, `world_size`, `allow_oom`; with a true `cpu` there is no GPU.
        saves: Also return the facts about checkpoints, for which the time of a step is predicted.
    """
    gpu, world_size = facts.get("gpu"), facts.get("world_size")
    if facts.get("cpu") or not isinstance(gpu, str) or not isinstance(world_size, int):
        return {}
    try:
        plan = make_plan(sections, world_size=world_size)
    except PlanError:  # `make_plan` itself reports the reason
        return {}
    device = GPU_MEMORY.get(find_short_name(gpu, GPU_MEMORY) or "")
    memory = plan.peak.rank_bytes
    checkpoints = (
        _checkpoint_facts(sections, plan, gpu=find_short_name(gpu, GPU_SPEEDS) or gpu) if saves else {}
    )
    return {
        "memory_of_state": memory.weights + memory.gradients + (memory.optimizer or 0),
        "memory_of_tensors": memory.total,
        "memory_of_run": plan.needed_bytes,
        "memory_of_gpu": None if device is None else device.size,
        "allow_oom": facts.get("allow_oom", False),
        **checkpoints,
    }


def _checkpoint_facts(sections: Mapping[str, object], plan: ResourcePlan, *, gpu: str) -> dict[str, object]:
    """Return the facts about the checkpoints of a run that saves; empty if the time of its step is not predicted."""
    if read_field(sections.get("checkpoint"), "save_interval") is None:
        return {}
    speed, _ = try_predict(sections, plan, gpu=gpu)  # `plan` reports the reason
    saves = None if speed is None else plan_saves(sections, plan, step_seconds=speed.step_seconds)
    if saves is None:
        return {}
    lost = saves.lost_seconds
    return {
        "best_save_interval": saves.best_interval,
        "save_interval_reason": saves.reason(gpu=gpu, ranks=plan.world_size),
        "lost_hours": None if lost is None else round(lost / 3600, 2),
        "checkpoints_on_disk": saves.checkpoints,
        "bytes_of_checkpoints": saves.disk_bytes,
    }
