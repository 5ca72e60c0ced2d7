"""Rules on the field `perf`, which selects fast settings."""

from __future__ import annotations

from mb_config.perf.names import AUTO, GPUS, PRECISIONS, gpu_of, has_precision, read_name
from mb_schema.gpu_capabilities import KNOWN
from mb_schema.gpu_names import find_short_name
from mb_schema.rule_kinds import config_rule
from mb_schema.rules import Rule, rules_in


@config_rule(
    "PF01",
    why="there are fast settings for these GPUs",
    fix=f"Use one of them, with _{' or _'.join(PRECISIONS)} for that precision, or remove it.",
    fails={"perf": "h10"},
    passes={"perf": "h100_fp8"},
)
def _unknown_name(perf):
    return f"{perf!r} is not auto or one of {', '.join(GPUS)}" if perf and read_name(perf) is None else None


@config_rule(
    "PF03",
    why="the settings were measured on the GPU that they are named for",
    fix="Set perf=auto, or remove it.",
    fails={"perf": "b200", "gpu": "h100"},
    passes={"perf": "h100"},
    severity="warning",
)
def _other_gpu(perf, *, gpu):
    name = read_name(perf) if perf else None
    short_name = find_short_name(gpu, KNOWN) if gpu else None
    if name is None or short_name is None or name.gpu == short_name:
        return None
    if name.gpu != AUTO:
        return f"is {perf}, but the GPU is {short_name}"
    return None if gpu_of(name, short_name) else f"is {perf}, but there are no settings for {short_name}"


@config_rule(
    "PF02",
    why="its tensor cores lack that format",
    fix="Remove the suffix, or use _fp8.",
    fails={"perf": "h100_nvfp4"},
    passes={"perf": "b200_nvfp4", "gpu": "b200"},
)
def _unsupported_precision(perf, *, gpu):
    name = read_name(perf) if perf else None
    chosen = None if name is None else gpu_of(name, gpu)
    if name is None or chosen is None or has_precision(chosen, name.precision):
        return None
    return f"is {perf}, but {chosen} does not compute in {name.precision}"


@config_rule(
    "PF04",
    why="fast settings are for a GPU, so that those of the recipe are used",
    fix="Remove it; --gpu h100 of the check shows the settings for another machine.",
    fails={"perf": "auto", "cpu": True},
    passes={"cpu": False},
    severity="warning",
)
def _no_gpu(perf, *, cpu):
    return f"is {perf}, but there is no GPU" if perf and read_name(perf) and cpu else None


RULES: tuple[Rule, ...] = rules_in(globals())
