"""Rules on the field `perf`, which selects fast settings."""

from __future__ import annotations

from mb_config.perf.names import AUTO, GPUS, PRECISIONS, gpu_of, has_precision, read_name
from mb_schema.gpu_capabilities import KNOWN
from mb_schema.gpu_names import find_short_name
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule


def _unknown(perf: str | None) -> str | None:
    return f"{perf!r} is not auto or one of {', '.join(GPUS)}" if perf and read_name(perf) is None else None


def _other_gpu(perf: str | None, gpu: str | None) -> str | None:
    name = read_name(perf) if perf else None
    found = find_short_name(gpu, KNOWN) if gpu else None
    if name is None or found is None or name.gpu == found:
        return None
    if name.gpu != AUTO:
        return f"is {perf}, but the GPU is {found}"
    return None if gpu_of(name, found) else f"is {perf}, but there are no settings for {found}"


def _unsupported_precision(perf: str | None, gpu: str | None) -> str | None:
    name = read_name(perf) if perf else None
    chosen = None if name is None else gpu_of(name, gpu)
    if name is None or chosen is None or has_precision(chosen, name.precision):
        return None
    return f"is {perf}, but {chosen} does not compute in {name.precision}"


RULES: tuple[Rule, ...] = (
    rule(
        "PF01",
        "perf",
        _unknown,
        why="there are fast settings for these GPUs",
        fix=f"Use one of them, with _{' or _'.join(PRECISIONS)} for that precision, or remove it.",
        fails=("h10",),
        passes=("h100_fp8",),
    ),
    rule(
        "PF02",
        ("perf", "facts.gpu"),
        _unsupported_precision,
        why="its tensor cores lack that format",
        fix="Remove the suffix, or use _fp8.",
        fails=("h100_nvfp4", "h100"),
        passes=("b200_nvfp4", "b200"),
    ),
    rule(
        "PF03",
        ("perf", "facts.gpu"),
        _other_gpu,
        why="the settings were measured on the GPU that they are named for",
        fix="Set perf=auto, or remove it.",
        severity="warning",
        fails=("b200", "h100"),
        passes=("h100", "h100"),
    ),
    rule(
        "PF04",
        ("perf", "facts.cpu"),
        lambda perf, cpu: f"is {perf}, but there is no GPU" if perf and read_name(perf) and cpu else None,
        why="fast settings are for a GPU, so that those of the recipe are used",
        fix="Remove it; --gpu h100 of the check shows the settings for another machine.",
        severity="warning",
        fails=("auto", True),
        passes=("auto", False),
    ),
)
