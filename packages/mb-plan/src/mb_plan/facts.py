"""Facts that the plan of a run gives to rules, and to decisions on what it can keep in memory and when it saves."""

from __future__ import annotations

from collections.abc import Mapping

from mb_plan.errors import PlanError
from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_plan.memory.resource_plan import ResourcePlan, make_plan
from mb_plan.rules import ALLOWED, CHECKPOINTS, DISK, INTERVAL, LOST, NEED, STATE
from mb_plan.shape.fields import read_field
from mb_plan.time.gpus import GPU_SPEEDS
from mb_plan.time.prediction import predict
from mb_plan.time.saves import plan_saves
from mb_schema.gpu_names import find_short_name

TENSORS, GPU = "memory_of_tensors", "memory_of_gpu"
"""Further facts: bytes of the run without overhead; bytes of the GPU."""
REASON = "save_interval_reason"
"""Further fact: text that explains the best interval between checkpoints."""


def planned_facts(
    sections: Mapping[str, object], facts: Mapping[str, object], *, saves: bool = True
) -> dict[str, object]:
    """Return the facts about a resolved run on GPUs: its memory and, if its step is predicted, its checkpoints.

    Empty without a GPU, or if the run is not planned.

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
    return {
        STATE: memory.weights + memory.gradients + (memory.optimizer or 0),
        TENSORS: memory.total,
        NEED: plan.needed_bytes,
        GPU: None if device is None else device.size,
        ALLOWED: facts.get(ALLOWED, False),
        **(_checkpoint_facts(sections, plan, gpu=find_short_name(gpu, GPU_SPEEDS) or gpu) if saves else {}),
    }


def _checkpoint_facts(sections: Mapping[str, object], plan: ResourcePlan, *, gpu: str) -> dict[str, object]:
    """Return the facts about the checkpoints of a run that saves; empty if the time of its step is not predicted."""
    if read_field(sections.get("checkpoint"), "save_interval") is None:
        return {}
    try:
        seconds = predict(sections, plan, gpu=gpu).step_seconds
    except PlanError:  # `plan` reports the reason
        return {}
    saves = plan_saves(sections, plan, step_seconds=seconds)
    if saves is None:
        return {}
    lost = saves.lost_seconds
    return {
        INTERVAL: saves.best_interval,
        REASON: saves.reason(gpu=gpu, ranks=plan.world_size),
        LOST: None if lost is None else round(lost / 3600, 2),
        CHECKPOINTS: saves.checkpoints,
        DISK: saves.disk_bytes,
    }
