"""Rules on the GPU. It is a fact, given by its short name; no device is queried."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from mb_config.resolve.precision_table import precision_field
from mb_schema.gpu_capabilities import KNOWN, unsupported_format
from mb_schema.gpu_names import find_short_name, short_name
from mb_schema.rule_kinds import config_rule, facts_rule
from mb_schema.rules import Rule, rules_in

NVLINK_GPUS: Mapping[str, int] = {
    **dict.fromkeys(("a100", "a800", "h20", "h100", "h200", "h800", "b200", "b300"), 8),
    "gb200": 72,
    "gb300": 72,
}
"""Short name of a GPU to the number of GPUs that its common system connects by NVLink: a board or a rack."""


def gpu_short_name(name: str, *, field: str = "gpu") -> str:
    """Return the short name ("h100") of a GPU name as users or nvidia-smi write it ("NVIDIA H100 80GB HBM3").

    Args:
        name: The name.
        field: Field or option with the name, for the message.

    Raises:
        UnknownGpuError: If the name is not known; the message contains the nearest ones.
    """
    return short_name(name, KNOWN, field=field)


def nvlink_gpus(gpu: str) -> int | None:
    """Return the number of GPUs that the common system of a GPU connects by NVLink, or None if it is not known."""
    return NVLINK_GPUS.get(find_short_name(gpu, KNOWN) or "")


@facts_rule(
    "H05",
    why="each process of a machine uses the GPU with its local rank as index",
    fix="Start at most one process for each visible GPU (CUDA_VISIBLE_DEVICES), or set "
    "dist.external_gpu_device_mapping=true if the launcher makes one GPU visible to each process.",
    fails={"local_world_size": 8, "gpus_per_node": 4},
    passes={"local_world_size": 4},
)
def _more_processes_than_gpus(local_world_size, gpus_per_node, dist__external_gpu_device_mapping):
    if dist__external_gpu_device_mapping or local_world_size <= gpus_per_node:
        return None
    return (
        f"{local_world_size} processes on a machine with {gpus_per_node} visible "
        f"GPU{'s' if gpus_per_node > 1 else ''}"
    )


@facts_rule(
    "H01",
    why="rules on GPUs cannot be checked for an unknown GPU",
    fix="Use one of these names or a name that nvidia-smi prints, or leave it unset.",
    fails={"gpu": "h10"},
    passes={"gpu": "h100"},
)
def _unknown_gpu(gpu):
    if find_short_name(gpu, KNOWN):
        return None
    near = get_close_matches(gpu.lower(), KNOWN, n=3, cutoff=0.5) or KNOWN
    return f"{gpu!r} is not a known GPU; the nearest names are {', '.join(near)}"


@config_rule(
    "H02",
    why="its tensor cores do not support this format",
    fix="Choose a different mixed_precision or GPU.",
    fails={"mixed_precision": "bf16_with_mxfp8_mixed", "gpu": "h100"},
    passes={"gpu": "b200"},
)
def _recipe_unsupported_on_gpu(mixed_precision, *, gpu):
    requested = {
        name: precision_field(mixed_precision, name) for name in ("bf16", "fp8", "fp8_recipe", "fp4")
    }
    return unsupported_format(gpu, **requested)


RULES: tuple[Rule, ...] = rules_in(globals())
