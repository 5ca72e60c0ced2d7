"""Rules on numbers that exceed any machine, so that typos are reported before anything is computed."""

from __future__ import annotations

from mb_schema.rule_kinds import at_most
from mb_schema.rules import Rule

SIZE_RULES = "SZ"
"""Prefix of the rules of all packages on such numbers."""

_BATCHES = {
    "SZ06a": "train.global_batch_size",
    "SZ06b": "train.micro_batch_size",
    "SZ06c": "validation.eval_global_batch_size",
    "SZ06d": "validation.eval_micro_batch_size",
}

RULES: tuple[Rule, ...] = (
    *(
        at_most(number, path, 10**8, why="a step reads all of these sequences before it updates the weights")
        for number, path in _BATCHES.items()
    ),
    at_most("SZ07", "facts.world_size", 10**8, why="no cluster has so many GPUs"),
)
