"""Rules on what a GPU can do. The GPU is a fact, told by its short name: no device is asked.

The compute capabilities are those of NVIDIA's table "CUDA GPU Compute Capability".
"""

from __future__ import annotations

from collections.abc import Mapping

from mb_config.precision_table import precision_field
from mb_config.rules.rule import Rule

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


def capability(gpu: str) -> tuple[int, int] | None:
    """Compute capability of a GPU by its short name; None for one that is not in the table."""
    return CAPABILITIES.get(gpu.lower())


def _unknown(gpu: str) -> str | None:
    return None if capability(gpu) else f"{gpu!r} is none of {', '.join(CAPABILITIES)}"


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
    for wish, what, needed in needs:
        if wish and found < needed:
            return f"{what} needs compute capability {_dotted(needed)}, but {gpu} has {_dotted(found)}"
    return None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _recipe_fits(precision: object, gpu: str) -> str | None:
    wishes = {name: precision_field(precision, name) for name in ("bf16", "fp8", "fp8_recipe", "fp4")}
    return _too_old(gpu, **wishes)


def _model_fits(bf16: object, fp8: object, fp8_recipe: object, fp4: object, gpu: str) -> str | None:
    return _too_old(gpu, bf16=bf16, fp8=fp8, fp8_recipe=fp8_recipe, fp4=fp4)


RULES: tuple[Rule, ...] = (
    Rule(
        id="H01",
        fields=("facts.gpu",),
        test=_unknown,
        why="what an unknown GPU can do is unknown, so the rules on GPUs say nothing",
        fix="Give a name from the list, or none.",
        severity="warning",
        fails={"facts.gpu": "h10"},
        passes={"facts.gpu": "h100"},
    ),
    Rule(
        id="H02",
        fields=("mixed_precision", "facts.gpu"),
        test=_recipe_fits,
        why="its tensor cores do not compute in that format",
        fix="Choose another mixed_precision or another GPU.",
        fails={"mixed_precision": "bf16_with_mxfp8_mixed", "facts.gpu": "h100"},
        passes={"mixed_precision": "bf16_with_mxfp8_mixed", "facts.gpu": "b200"},
    ),
    Rule(
        id="H03",
        fields=("model.bf16", "model.fp8", "model.fp8_recipe", "model.fp4", "facts.gpu"),
        test=_model_fits,
        why="its tensor cores do not compute in that format",
        fix="Choose another precision of the model or another GPU.",
        fails={"model.bf16": True, "model.fp8": "hybrid", "facts.gpu": "a100"},
        passes={"model.bf16": True, "model.fp8": "hybrid", "facts.gpu": "h100"},
    ),
)
