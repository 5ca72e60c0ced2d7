"""Rules on the section `peft`, for a check before launch. Standard library only."""

from collections.abc import Sequence

from mb_schema.rule_kinds import excludes, in_range, rule, within
from mb_schema.rules import Rule


def _targets(names: Sequence[str], excluded: Sequence[str] = ()) -> str | None:
    return None if names or excluded else "names no layer"


RULES: tuple[Rule, ...] = (
    in_range(
        "PE01",
        "peft.dim",
        1,
        why="it is the rank of the product that is added",
        fix="Set peft.dim to 1 or more.",
        fails=0,
        passes=1,
    ),
    in_range(
        "PE02",
        "peft.dropout",
        0,
        below=1,
        why="it is the probability of zeroing an input, and the other inputs are scaled by 1 / (1 - dropout)",
        fix="Set peft.dropout to at least 0 and below 1.",
        fails=1.0,
        passes=0.0,
    ),
    rule(
        "PE03",
        within("peft", "target_modules exclude_modules"),
        _targets,
        why="everything but adapters is frozen, so that nothing would be trained",
        fix="Select layers, such as linear_qkv and linear_proj, or remove peft.target_modules.",
        fails=([], []),
        passes=(["linear_qkv"], []),
    ),
    excludes(
        "PE04",
        {"peft.target_modules": True, "peft.exclude_modules": True},
        why="exclude_modules selects all other layers, and target_modules selects only its own",
        fix="Set peft.target_modules=[] to use peft.exclude_modules, or remove peft.exclude_modules.",
        fails=(["linear_qkv"], ["linear_proj"]),
        passes=([], ["linear_proj"]),
    ),
    rule(
        "PE05",
        within("peft", "lora_A_init_method lora_B_init_method"),
        lambda a, b: "are both zero" if a == b == "zero" else None,
        why="the gradient of each factor is proportional to the other, so that both stay zero",
        fix="Set one of them to another method: A to kaiming, for example.",
        fails=("zero", "zero"),
        passes=("kaiming", "zero"),
    ),
    rule(
        "PE06",
        "peft.loraplus_lr_ratio",
        lambda ratio: None if ratio is None or 0 < ratio < float("inf") else "is not positive",
        why="it multiplies the learning rate of the second factor of each adapter",
        fix="Set peft.loraplus_lr_ratio to a positive number, such as 16, or leave it out.",
        fails=(0.0,),
        passes=(16.0,),
    ),
    rule(
        "V139a",
        ("peft", "checkpoint.pretrained_checkpoint"),
        lambda adapters, weights: None if weights else "is set without pretrained weights",
        why="adapters are trained on top of pretrained weights",
        fix="Set checkpoint.pretrained_checkpoint.",
        fails=({"dim": 8},),
        passes=({"dim": 8}, "/checkpoints/base"),
    ),
)
"""Rules on the section as written by the user; unsupported layers are rejected when the model is built."""
