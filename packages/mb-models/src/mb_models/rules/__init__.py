"""Rules on model sections, for a check before launch and again when the model is built. One file per topic.

In the order of a section: `shape.py`, `sizes.py` and `widths.py`, `variants.py` and `layer_variants.py`, `moe.py`,
`parallelism.py`, `precision.py`, `recompute.py`, `cuda_graphs.py`, `fsdp.py`, `documents.py`. What the installed
kernels can do is in `kernels.py`, `layers.py`, `local_layers.py` and `transformer_engine.py`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mb_models.errors import ModelConfigError
from mb_models.hybrid import rules as hybrid
from mb_models.mimo import rules as mimo
from mb_models.peft import rules as peft
from mb_models.rules import (
    cuda_graphs,
    documents,
    fsdp,
    kernels,
    layer_variants,
    layers,
    local_layers,
    moe,
    parallelism,
    precision,
    recompute,
    shape,
    sizes,
    variants,
    widths,
)
from mb_models.rules.parallelism import INTERLEAVING
from mb_models.t5 import rules as t5
from mb_schema.rules import Problem, Rule, check

__all__ = ["BUILD_RULES", "INTERLEAVING", "RULES", "ModelConfigError", "Rule", "violated_rules"]

_TOPICS = (
    shape,
    local_layers,
    documents,
    variants,
    layer_variants,
    widths,
    parallelism,
    sizes,
    recompute,
    precision,
    moe,
    layers,
    cuda_graphs,
    kernels,
    hybrid,
    t5,
    fsdp,
    mimo,
    peft,
)


def violated_rules(rules: Iterable[Rule], values: Mapping[str, object]) -> list[Problem]:
    """Return the rules of severity "error" among `rules` that `values` (field path -> value) violate.

    A rule applies if `values` hold the first of its paths, and any path of each section that it reads; a missing path
    reads as None.
    """
    sections: dict[str, Any] = {path: value for path, value in values.items() if "." not in path}
    for path, value in values.items():
        section, _, name = path.partition(".")
        if name:
            sections.setdefault(section, {})[name] = value
    problems = check(sections, rules, facts=sections.pop("facts", {}))
    return [problem for problem in problems if problem.severity == "error"]


RULES: tuple[Rule, ...] = tuple(rule for topic in _TOPICS for rule in topic.RULES)
"""Rules on a section as written by the user."""

BUILD_RULES: tuple[Rule, ...] = (*RULES, INTERLEAVING)
"""Rules that hold when the model is built."""
