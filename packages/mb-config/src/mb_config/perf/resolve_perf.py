"""Resolution of the field `perf` into fast settings. Values that the user set are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from mb_config.container.field_access import set_field
from mb_config.container.section import assign_computed
from mb_config.perf.names import gpu_of, has_precision, read_name
from mb_config.perf.settings import (
    MODEL,
    RUN,
    SHARDED_OPTIMIZER,
    VARIABLES,
    FastSetting,
    graph_settings,
    precision_of,
)
from mb_config.perf.target import PerfTarget
from mb_config.resolve.precision_recipes import get_mixed_precision_config
from mb_config.resolve.precision_table import CORE, precision_values
from mb_config.resolve.state import Priority, ResolverState
from mb_schema.rules import NOTHING

FREE_FRACTION = 0.15
"""Part of the memory that the plan does not count: CUDA, NCCL, kernels' workspaces and fragmentation."""
MODULES = "model.cuda_graph_modules"
"""Setting of CUDA graphs for which the user may choose another value."""
_RESOLVED = "resolve: "
_RECOMPUTE = ("granularity", "method", "num_layers", "modules")

Resolve = Callable[..., object]
"""`runtime_config_update`: resolves a copy of the configuration, of which the memory is planned."""


def resolve_perf(state: ResolverState, *, resolve: Resolve, facts: Mapping[str, object] = NOTHING) -> None:
    """Apply the fast settings of `config.perf` for a GPU. Idempotent.

    Values of the user, and values that resolving has set before, are kept; those of a recipe are replaced. Nothing is
    applied without a GPU (`facts["cpu"]`), nor for an unknown value, which rules report.
    """
    target = perf_target(state.config, facts)
    if target is None:
        return
    label = f"perf={state.config.perf}"
    precision = precision_of(target)
    if precision is not None and _may_get_precision(state, str(precision.value)):
        _apply(state, precision, label)
    if precision is None or state.config.mixed_precision != precision.value:
        target = replace(target, precision="")  # eight bits are not computed then
    for setting in MODEL:
        _apply_together(state, (setting,), target, label)
    _apply_together(state, SHARDED_OPTIMIZER, target, label)
    for setting in RUN:
        _apply_together(state, (setting,), target, label)
    _without_recomputation(state, target, label, resolve)
    graphs = graph_settings(target)
    if all(_may_get(state, setting) for setting in graphs if setting.path != MODULES):
        for setting in graphs:
            _apply(state, setting, label)
    for setting in _variables(target):
        state.config.env_vars[setting.path] = setting.value
        _note(state, f"env_vars.{setting.path}", None, setting, label)


def perf_target(config: Any, facts: Mapping[str, object]) -> PerfTarget | None:
    """Return what `config.perf` makes fast; None: nothing."""
    name = read_name(config.perf) if isinstance(config.perf, str) else None
    if name is None or facts.get("cpu"):
        return None
    gpu = gpu_of(name, facts.get("gpu"))
    if gpu is None or not has_precision(gpu, name.precision):
        return None
    return PerfTarget(config=config, gpu=gpu, precision=name.precision, facts=facts)


def _apply_together(
    state: ResolverState, settings: Sequence[FastSetting], target: PerfTarget, label: str
) -> None:
    """Apply settings of which none is of use without the others: all, or none if a value of the user is in the way."""
    if settings[0].when(target) and all(_may_get(state, setting) for setting in settings):
        for setting in settings:
            _apply(state, setting, label)


def _apply(state: ResolverState, setting: FastSetting, label: str) -> None:
    """Set a field to its fast value, unless the user has set it or it does not exist, and note the change."""
    path = setting.path
    if "." not in path:
        if not _is_free(state, path) or getattr(state.config, path) == setting.value:
            return
        old = getattr(state.config, path)
        assign_computed(state.config, path, setting.value)
    else:
        if not state.has(path) or not _is_free(state, path):
            return
        old = state.get(path)
        if old == setting.value:
            return
        state.set(path, setting.value, rule=label, why=setting.why)
    _note(state, path, old, setting, label)


def _may_get(state: ResolverState, setting: FastSetting) -> bool:
    """Return True if a field has the fast value or may get it, or if there is no such field."""
    path = setting.path
    return not state.has(path) or state.get(path) == setting.value or _is_free(state, path)


def _may_get_precision(state: ResolverState, name: str) -> bool:
    """Return True unless the user set a field that defines the precision recipe to another value."""
    values = precision_values(get_mixed_precision_config(name), state.config)
    return all(_is_free(state, path) for path, _ in values if path.partition(".")[2] in CORE)


def _is_free(state: ResolverState, path: str) -> bool:
    """Return True if neither the user nor resolving has set a value, nor the section around it as a whole."""
    origin = state.provenance.origin(path)
    return state.priority(path) < Priority.USER and not origin.startswith(_RESOLVED)


def _note(state: ResolverState, path: str, old: object, setting: FastSetting, label: str) -> None:
    """Record a change once, with the reason as its origin."""
    if not any(change.field == path for change in state.changes):
        state.record(path, old, setting.value, rule=label, why=setting.why)
    state.provenance.note(path, f"{_RESOLVED}{label}: {setting.why}")


def _variables(target: PerfTarget) -> Iterator[FastSetting]:
    seen: set[str] = set()
    for setting in VARIABLES:
        if setting.path in seen or target.variable(setting.path) is not None or not setting.when(target):
            continue
        seen.add(setting.path)
        yield setting


def _without_recomputation(state: ResolverState, target: PerfTarget, label: str, resolve: Resolve) -> None:
    """Keep all activations if a recipe recomputes some, and the plan has room for all of them."""
    paths = [f"model.recompute_{name}" for name in _RECOMPUTE]
    if not target.model("recompute_granularity") or not all(_is_free(state, path) for path in paths):
        return
    known = _memory_without_recomputation(target, resolve)
    need, size = known.get("memory_of_tensors"), known.get("memory_of_gpu")
    if need is None or size is None or need > (1 - FREE_FRACTION) * size:
        return
    why = f"the plan needs {need / 2**30:.1f} GiB of {size / 2**30:.1f} with all activations kept"
    for path in paths:
        _apply(state, FastSetting(path=path, value=None, why=why, when=lambda _: True), label)


def _memory_without_recomputation(target: PerfTarget, resolve: Resolve) -> Mapping[str, Any]:
    """Return the facts about the memory of a copy; empty if it is not known."""
    world_size = target.facts.get("world_size")
    if not isinstance(world_size, int):
        return NOTHING
    copy = deepcopy(target.config)
    copy.perf = None
    for name in _RECOMPUTE:
        set_field(copy, f"model.recompute_{name}", None)
    try:
        resolve(copy, world_size=world_size, facts=target.facts, rules=())
    except ValueError:  # the rules report what is wrong
        return NOTHING
    known: Mapping[str, Any] = copy.planned_facts({**target.facts, "gpu": target.gpu}, saves=False)
    return known
