"""Replacement of values that a machine does not support and the user did not set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mb_config.container.container import ConfigContainer
from mb_config.container.field_access import get_field, has_field, set_field
from mb_config.container.section_types import wrong_types
from mb_config.overrides.provenance import Provenance
from mb_config.preflight.problems import check
from mb_config.resolve.state import Change, Priority, ResolverState
from mb_schema.rules import Rule


def apply_fallbacks(
    cfg: ConfigContainer,
    rules: Iterable[Rule],
    *,
    facts: Mapping[str, object],
    provenance: Provenance | None = None,
) -> list[Change]:
    """Replace values that `rules` reject by their fallbacks in place, and return the changes.

    Defaults and values of a recipe are replaced. A rule is skipped if the user set one of the values that its fallback
    would replace; checking then reports it. Rules are applied in order, each to the result of the previous ones.
    Nothing is replaced in a configuration with values of a wrong type. Where `cfg.follows_megatron_bridge`, what
    Megatron-Bridge derives from the parallel sizes is set first.

    Args:
        cfg: The sections.
        rules: Rules with their fallbacks.
        facts: Facts that rules read, as for `check`.
        provenance: Origins of the values; receives each change. Without it, values that the sections record as set
            in code count as set by the user.
    """
    state = ResolverState(config=cfg, provenance=Provenance() if provenance is None else provenance)
    if wrong_types(cfg):
        return []
    if cfg.follows_megatron_bridge:
        _follow_megatron_bridge(state)
    for rule in rules:
        if any(not state.has(path) or state.priority(path) == Priority.USER for path in rule.fallback):
            continue
        if rule.fallback and check(cfg.sections(), [rule], facts=facts):
            for path, value in rule.fallback.items():
                if state.get(path) != value:
                    state.set(path, value, rule=rule.id, why=rule.why)
                    state.provenance.note(path, f"resolve: {rule.id}: {rule.why}")
    return state.net_changes()


def _follow_megatron_bridge(state: ResolverState) -> None:
    """Set what Megatron-Bridge derives: sequence parallelism and expert parallelism."""
    sequence, experts = "model.sequence_parallel", "model.expert_tensor_parallel_size"
    degrees = ("model.tensor_model_parallel_size", "model.expert_model_parallel_size")
    if not all(state.has(path) for path in (sequence, experts, *degrees)):
        return
    tp, ep = (state.get(path) or 1 for path in degrees)
    if tp == 1 and state.get(sequence):
        state.set(sequence, False, rule="P06", why="it has no effect without tensor parallelism")
    if ep > 1 and state.get(experts) is None:
        state.set(experts, 1, rule="V161", why="experts are divided by expert parallelism alone")


NO_TRANSFORMER_ENGINE = "resolve: no Transformer Engine on this machine"
"""Origin of `model.transformer_impl` if a run on this machine would use other layers than configured."""


def select_local_layers(cfg: ConfigContainer, *, facts: Mapping[str, object], provenance: Provenance) -> bool:
    """Set the layers that a run uses on a machine without a GPU. Return True if that changed the configuration.

    A check then applies the rules on the layers that would be built. With a GPU, a fallback selects them.
    """
    path = "model.transformer_impl"
    engine = facts.get("transformer_engine") or not has_field(cfg, path)
    if engine or not facts.get("cpu") or get_field(cfg, path) == "local":
        return False
    set_field(cfg, path, "local")
    provenance.note(path, NO_TRANSFORMER_ENGINE)
    return True
