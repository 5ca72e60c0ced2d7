"""Rules on the section `peft`, for a check before launch. Standard library only."""

from collections.abc import Sequence

from mb_models.rule import Rule


def _rank(dim: int) -> str | None:
    return None if dim >= 1 else f"is {dim}"


def _dropout(probability: float) -> str | None:
    return None if 0.0 <= probability < 1.0 else f"is {probability}"


def _targets(names: Sequence[str], excluded: Sequence[str] = ()) -> str | None:
    return None if names or excluded else "names no layer"


def _both(names: Sequence[str], excluded: Sequence[str]) -> str | None:
    return (
        f"names {len(names)} layers, and peft.exclude_modules {len(excluded)}" if names and excluded else None
    )


RULES: tuple[Rule, ...] = (
    Rule(
        id="PE01",
        fields=("peft.dim",),
        test=_rank,
        why="it is the rank of the product that is added",
        fix="Set peft.dim to 1 or more.",
        fails={"peft.dim": 0},
        passes={"peft.dim": 1},
    ),
    Rule(
        id="PE02",
        fields=("peft.dropout",),
        test=_dropout,
        why="it is the probability of zeroing an input, and the other inputs are scaled by 1 / (1 - dropout)",
        fix="Set peft.dropout to at least 0 and below 1.",
        fails={"peft.dropout": 1.0},
        passes={"peft.dropout": 0.0},
    ),
    Rule(
        id="PE03",
        fields=("peft.target_modules", "peft.exclude_modules"),
        test=_targets,
        why="everything but adapters is frozen, so that nothing would be trained",
        fix="Select layers, such as linear_qkv and linear_proj, or remove peft.target_modules.",
        fails={"peft.target_modules": [], "peft.exclude_modules": []},
        passes={"peft.target_modules": ["linear_qkv"], "peft.exclude_modules": []},
    ),
    Rule(
        id="PE04",
        fields=("peft.target_modules", "peft.exclude_modules"),
        test=_both,
        why="exclude_modules selects all other layers, and target_modules selects only its own",
        fix="Set peft.target_modules=[] to use peft.exclude_modules, or remove peft.exclude_modules.",
        fails={"peft.target_modules": ["linear_qkv"], "peft.exclude_modules": ["linear_proj"]},
        passes={"peft.target_modules": [], "peft.exclude_modules": ["linear_proj"]},
    ),
)
"""Rules on the section as written by the user; unsupported layers are rejected when the model is built."""
