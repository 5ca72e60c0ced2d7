"""Models of several modules with per-module parallelism (MIMO), as the rules on process counts treat them.

Each of these modules takes its rows of the same microbatch. Rules on the number of processes therefore treat the
modules as one replica, and the rules on per-module parallelism read the fact `all_processes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import lcm, prod
from typing import Any

from mb_config.errors import ConfigurationError
from mb_config.rules.parallelism import SIZES
from mb_schema.rules import Rule, value_at

WORLD_SIZE, ALL_PROCESSES = "facts.world_size", "facts.all_processes"
_LAYOUT = ("model.language_rank_offset", "model.vision_tensor_model_parallel_size", SIZES[0])


class ParallelSizeError(ConfigurationError, ValueError):
    """A parallel size that is not a positive integer."""


def smallest_world(model: object, *, follows_megatron_bridge: bool = False) -> int:
    """Return the smallest number of processes that holds a model, from the parallel sizes of its section.

    With `follows_megatron_bridge`, as of a container, experts with expert parallelism have a tensor-parallel size of 1
    unless it is set; otherwise they take that of the model.

    Raises:
        ParallelSizeError: If a parallel size is not positive.
    """
    tp, pp, cp = (_degree(model, path) or 1 for path in SIZES)
    ep = _degree(model, "model.expert_model_parallel_size") or 1
    unset = 1 if follows_megatron_bridge and ep > 1 else tp
    experts = ep * (_degree(model, "model.expert_tensor_parallel_size") or unset)
    dense = tp * pp * cp
    if _field(model, "model.vision_num_layers"):
        offset, vision_tp, _ = (_field(model, path) for path in _LAYOUT)
        dense = offset + dense if offset else lcm(vision_tp or tp, dense)
    return lcm(dense, experts * pp) if _field(model, "model.num_moe_experts") else dense


def has_parallelism_per_module(model: object) -> bool:
    """Return True if the modules of a model have different parallel layouts, or different ranks."""
    return _are_different(*(_field(model, path) for path in _LAYOUT))


def one_replica(model: object, facts: Mapping[str, object]) -> Mapping[str, object]:
    """Return the facts for rules; with per-module parallelism, `world_size` is the size of one replica.

    The number of processes is then `all_processes`.
    """
    sizes = [_field(model, path) for path in SIZES]
    known = all(isinstance(size, int) for size in sizes)  # the check reports values of other types
    if "world_size" not in facts or not known or not has_parallelism_per_module(model):
        return facts
    return {**facts, "all_processes": facts["world_size"], "world_size": max(1, prod(sizes))}


def module_layouts(model: object, *, world_size: int) -> tuple[tuple[str, int, int], ...]:
    """Return name, tensor- and data-parallel size of each module of a model with per-module parallelism."""
    offset, vision_tp, tp = (_field(model, path) for path in _LAYOUT)
    vision_tp = vision_tp or tp
    vision, language = (offset or world_size) // vision_tp, (world_size - offset) // tp
    return (("encoder", vision_tp, vision), ("language model", tp, language))


def rules_per_point(rules: Iterable[Rule], model: object) -> list[Rule]:
    """Return the rules for a sweep over `model`, whose points can differ in the parallelism of its modules.

    Rules on process counts read the layout as well, and derive `world_size` as `one_replica` does.
    """
    if not _has(model, _LAYOUT[0]):
        return list(rules)
    counting = {WORLD_SIZE, ALL_PROCESSES}
    return [_with_layout(rule) if counting.intersection(rule.fields) else rule for rule in rules]


def _with_layout(rule: Rule) -> Rule:
    """Return a rule for which the modules of a MIMO model count as one replica."""
    read = [WORLD_SIZE if path == ALL_PROCESSES else path for path in rule.fields]
    paths = tuple(dict.fromkeys([*read, *_LAYOUT, *SIZES]))

    def test(*values: Any) -> str | None:
        known = dict(zip(paths, values, strict=True))
        different = _are_different(*(known[path] for path in _LAYOUT))
        if ALL_PROCESSES in rule.fields and not different:
            return None
        processes = known[WORLD_SIZE]
        replica = max(1, prod(known[path] or 1 for path in SIZES)) if different else processes
        facts = {ALL_PROCESSES: processes, WORLD_SIZE: replica}
        return Rule.message(rule, {**known, **facts})

    return Rule(
        id=rule.id,
        fields=paths,
        test=test,
        why=rule.why,
        fix=rule.fix,
        severity=rule.severity,
        fails=rule.fails,
        passes=rule.passes,
    )


def _are_different(offset: Any, vision_tp: Any, tp: Any) -> bool:
    """Return True for different layouts; `offset` is None for models of one module."""
    return offset is not None and (offset != 0 or vision_tp not in (None, tp))


def _degree(model: object, path: str) -> int | None:
    size = _field(model, path)
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ParallelSizeError(f"{path}: must be an integer of at least 1, not {size!r}. Set it.")
    return size


def _has(model: object, path: str) -> bool:
    name = path.partition(".")[2]
    return name in model if isinstance(model, Mapping) else hasattr(model, name)


def _field(model: object, path: str) -> Any:
    return value_at(path, {"model": model})
