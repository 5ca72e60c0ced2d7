"""Rules on the capabilities of GPUs. The GPU is a fact, given by its short name; no device is queried.

The compute capabilities are those of NVIDIA's table "CUDA GPU Compute Capability".
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from mb_config.resolve.precision_table import precision_field
from mb_schema.gpu_names import find_short_name, short_name
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

CAPABILITIES: Mapping[str, tuple[int, int]] = {
    "v100": (7, 0),
    "t4": (7, 5),
    "a100": (8, 0),
    "a800": (8, 0),
    "a30": (8, 0),
    "a10": (8, 6),
    "a40": (8, 6),
    "l4": (8, 9),
    "l40": (8, 9),
    "l40s": (8, 9),
    "h20": (9, 0),
    "h100": (9, 0),
    "h200": (9, 0),
    "h800": (9, 0),
    "gh200": (9, 0),
    "b200": (10, 0),
    "gb200": (10, 0),
    "b300": (10, 3),
    "gb300": (10, 3),
}
"""Short name of a GPU to its compute capability, major and minor."""


NVLINK_GPUS: Mapping[str, int] = {
    **dict.fromkeys(("a100", "a800", "h20", "h100", "h200", "h800", "b200", "b300"), 8),
    "gb200": 72,
    "gb300": 72,
}
"""Short name of a GPU to the number of GPUs that its common system connects by NVLink: a board or a rack."""


KNOWN: tuple[str, ...] = (*CAPABILITIES, "mi300x")
"""Short names of the GPUs with a known compute capability or memory size."""


def capability(gpu: str) -> tuple[int, int] | None:
    """Return the compute capability of a GPU by its name, or None if it is not in the table."""
    return CAPABILITIES.get(find_short_name(gpu, KNOWN) or "")


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


def _across_nodes(tp: int | None, expert_tp: int | None, gpus: int, world_size: int) -> str | None:
    sizes = {"tensor_model_parallel_size": tp, "expert_tensor_parallel_size": expert_tp}
    wide = [f"{name}={size}" for name, size in sizes.items() if size is not None and size > gpus]
    if not wide or world_size <= gpus:
        return None
    return f"groups exceed the {gpus} GPUs of a node ({', '.join(wide)})"


def _shared_gpus(processes: int, gpus: int, mapped: bool | None) -> str | None:
    if mapped or processes <= gpus:
        return None
    return f"{processes} processes on a machine with {gpus} visible GPU{'s' if gpus > 1 else ''}"


def _unknown(gpu: str) -> str | None:
    if find_short_name(gpu, KNOWN):
        return None
    near = get_close_matches(gpu.lower(), KNOWN, n=3, cutoff=0.5) or KNOWN
    return f"{gpu!r} is not a known GPU; the nearest names are {', '.join(near)}"


def _too_old(gpu: str, *, bf16: object, fp8: object, fp8_recipe: object, fp4: object) -> str | None:
    found = capability(gpu)
    if found is None:
        return None
    needs = (
        (fp4, "FP4", (10, 0)),
        (fp8 and fp8_recipe == "mxfp8", "MXFP8", (10, 0)),
        (fp8 and fp8_recipe == "blockwise", "blockwise FP8", (9, 0)),
        (fp8, "FP8", (8, 9)),
        (bf16, "bfloat16", (8, 0)),
    )
    for requested, what, needed in needs:
        if requested and found < needed:
            return f"{what} requires compute capability {_dotted(needed)}, but {gpu} has {_dotted(found)}"
    return None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _recipe_fits(precision: object, gpu: str) -> str | None:
    requested = {name: precision_field(precision, name) for name in ("bf16", "fp8", "fp8_recipe", "fp4")}
    return _too_old(gpu, **requested)


def _model_fits(bf16: object, fp8: object, fp8_recipe: object, fp4: object, gpu: str) -> str | None:
    return _too_old(gpu, bf16=bf16, fp8=fp8, fp8_recipe=fp8_recipe, fp4=fp4)


RULES: tuple[Rule, ...] = (
    rule(
        "H01",
        "facts.gpu",
        _unknown,
        why="rules on GPUs cannot be checked for an unknown GPU",
        fix="Use one of these names or a name that nvidia-smi prints, or leave it unset.",
        fails=("h10",),
        passes=("h100",),
    ),
    rule(
        "H02",
        ("mixed_precision", "facts.gpu"),
        _recipe_fits,
        why="its tensor cores do not support this format",
        fix="Choose a different mixed_precision or GPU.",
        fails=("bf16_with_mxfp8_mixed", "h100"),
        passes=("bf16_with_mxfp8_mixed", "b200"),
    ),
    Rule(
        id="H03",
        fields=("model.bf16", "model.fp8", "model.fp8_recipe", "model.fp4", "facts.gpu"),
        test=_model_fits,
        why="its tensor cores do not support this format",
        fix="Choose a different precision of the model or a different GPU.",
        fails={"model.bf16": True, "model.fp8": "hybrid", "facts.gpu": "a100"},
        passes={"model.bf16": True, "model.fp8": "hybrid", "facts.gpu": "h100"},
    ),
    Rule(
        id="H04",
        fields=(
            "model.tensor_model_parallel_size",
            "model.expert_tensor_parallel_size",
            "facts.gpus_per_node",
            "facts.world_size",
        ),
        test=_across_nodes,
        why="every layer waits for collectives of this group, which are many times slower between nodes than over "
        "NVLink",
        fix="Lower it to the GPUs of a node, and increase model.pipeline_model_parallel_size or context_parallel_size.",
        severity="warning",
        fails={
            "model.tensor_model_parallel_size": 16,
            "facts.gpus_per_node": 8,
            "facts.world_size": 16,
        },
        passes={
            "model.tensor_model_parallel_size": 8,
            "facts.gpus_per_node": 8,
            "facts.world_size": 16,
        },
    ),
    rule(
        "H05",
        ("facts.local_world_size", "facts.gpus_per_node", "dist.external_gpu_device_mapping"),
        _shared_gpus,
        why="each process of a machine uses the GPU with its local rank as index",
        fix="Start at most one process for each visible GPU (CUDA_VISIBLE_DEVICES), or set "
        "dist.external_gpu_device_mapping=true if the launcher makes one GPU visible to each process.",
        fails=(8, 4),
        passes=(4, 4),
    ),
)
