"""Facts on the memory of a run, for rules, and for decisions on what a run can keep in memory."""

from __future__ import annotations

from collections.abc import Mapping

from mb_plan.errors import PlanError
from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_plan.memory.resource_plan import make_plan
from mb_plan.memory.rules import ALLOWED, NEED, STATE
from mb_schema.gpu_names import find_short_name

TENSORS, GPU = "memory_of_tensors", "memory_of_gpu"
"""Further facts: bytes of the run without overhead; bytes of the GPU."""


def memory_facts(
    sections: Mapping[str, object], facts: Mapping[str, object], *, vocab_size: int | None = None
) -> dict[str, object]:
    """Return the facts about the memory of a resolved run on a GPU; empty if it is not known, or not planned.

    Args:
        sections: The resolved sections, as for `make_plan`.
        facts: `gpu`, `world_size`, `allow_oom`; with a true `cpu` there is no GPU.
        vocab_size: Rows of the embedding if the model section does not set them.
    """
    gpu, world_size = facts.get("gpu"), facts.get("world_size")
    if facts.get("cpu") or not isinstance(gpu, str) or not isinstance(world_size, int):
        return {}
    try:
        plan = make_plan(sections, world_size=world_size, vocab_size=vocab_size)
    except PlanError:  # `make_plan` itself reports the reason
        return {}
    memory = GPU_MEMORY.get(find_short_name(gpu, GPU_MEMORY) or "")
    held = plan.peak.rank_bytes
    return {
        STATE: held.weights + held.gradients + (held.optimizer or 0),
        TENSORS: held.total,
        NEED: plan.needed_bytes,
        GPU: None if memory is None else memory.size,
        ALLOWED: facts.get(ALLOWED, False),
    }
