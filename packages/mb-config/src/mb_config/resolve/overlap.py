"""Application of the communication overlap section to model, optimizer and ddp; values that the user set are kept."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from types import SimpleNamespace
from typing import Any

from mb_config.container.field_access import field_values, megatron_class_name
from mb_config.container.section import unrecorded
from mb_config.megatron_defaults import megatron_defaults
from mb_config.resolve.state import Priority, ResolverState
from mb_schema.rules import NOTHING

_SECTIONS = ("model", "optimizer", "ddp")


def resolve_overlap(state: ResolverState, *, facts: Mapping[str, object] = NOTHING) -> None:
    """Call `config.comm_overlap.setup`, and record each change with its reason and each rejected request.

    It may return records with `field`, `old`, `new`, `why`, `rule` and `severity`, as `Change` has them, for changed
    fields and, with the severity "warning", for rejected requests.
    Fields that the user set are restored afterwards, and the value from `setup` is recorded as rejected.

    Raises:
        ValueError: If `setup` raises it for settings that contradict each other.
    """
    setup = getattr(state.config.comm_overlap, "setup", None)
    if state.problems or setup is None:
        return
    before = {
        f"{name}.{leaf}": value
        for name in _SECTIONS
        for leaf, value in field_values(getattr(state.config, name))
    }
    chosen = [path for path in before if state.priority(path) == Priority.USER]
    takes = signature(setup).parameters
    offered = {"keep": chosen, "transformer_engine": facts.get("transformer_engine"), "facts": facts}
    views = {name: _view(getattr(state.config, name)) for name in _SECTIONS}
    # `setup` assigns fields like a user would. Its assignments must not count as set by the user.
    with unrecorded(*views.values()):
        returned = setup(*views.values(), **{key: value for key, value in offered.items() if key in takes})
    reported = [] if returned is None else [*returned]
    _record_changes(state, views, before, chosen, reasons={item.field: item for item in reported})
    for item in reported:
        if item.severity == "warning":
            state.reject(item.field, requested=item.old, kept=item.new, rule=item.rule, why=item.why)


def _view(section: Any) -> Any:
    """Return the section itself, or an object with the values of a mapping and Megatron's defaults."""
    if not isinstance(section, Mapping):
        return section
    return SimpleNamespace(**{**megatron_defaults(megatron_class_name(section)), **section})


def _record_changes(
    state: ResolverState,
    views: Mapping[str, Any],
    before: Mapping[str, Any],
    chosen: list[str],
    *,
    reasons: Mapping[str, Any],
) -> None:
    """Record the differences from the previous values. The records of `setup` only explain them."""
    for name, view in views.items():
        mapping = view is not getattr(state.config, name)
        for leaf, new in list(field_values(view)):
            path = f"{name}.{leaf}"
            old = before[path] if path in before else state.get(path)
            if type(old) is type(new) and old == new:
                continue
            reason = reasons.get(path)
            rule, why = (reason.rule, reason.why) if reason else ("comm_overlap", "communication overlap")
            if path in chosen:
                _restore(state, view, path, old)
                state.reject(
                    path, requested=new, kept=old, rule=rule, why=f"{why}; the value was set explicitly"
                )
            elif mapping:
                state.set(path, new, rule=rule, why=why)
            else:
                state.record(path, old, new, rule=rule, why=why)


def _restore(state: ResolverState, view: Any, path: str, value: object) -> None:
    with unrecorded(view):
        setattr(view, path.partition(".")[2], value)
