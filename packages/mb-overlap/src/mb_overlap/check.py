"""Check for the overlap settings of a complete configuration."""

from collections.abc import Mapping

from mb_overlap.field_access import SectionView
from mb_overlap.rules import CONFLICT_RULES
from mb_schema.rules import Problem, check

Conflict = Problem
"""Violated rule."""


def find_conflicts(
    model_config: object,
    optimizer_config: object | None = None,
    ddp_config: object | None = None,
    *,
    comm_overlap: object | None = None,
    facts: Mapping[str, object] | None = None,
) -> list[Conflict]:
    """Return all violated overlap rules of a configuration. Read-only.

    Covers settings that train incorrectly (two interleaved stages with batched sends), settings that Megatron Core
    rejects when the model is built or that Transformer Engine rejects at initialization, and settings that silently
    disable the overlap.

    Args:
        model_config: any object with Megatron's field names, as `CommOverlapConfig.setup` takes it.
        optimizer_config: the same for the optimizer.
        ddp_config: the same for DDP.
        comm_overlap: the `comm_overlap` section, if `setup` has not been called yet; None if the other sections already
            hold the final values.
        facts: values that no section holds; a rule is skipped if one of its facts is unknown. `world_size`, `env`
            (environment variables of the processes), `gpu` (short name), `transformer_engine` (bool),
            `transformer_engine_version`, `torch_version`.
    """
    resolved = {"resolved": True} if comm_overlap is None else {}
    sections = {
        "model": model_config,
        "optimizer": optimizer_config,
        "ddp": ddp_config,
        "comm_overlap": comm_overlap,
    }
    views = {name: None if section is None else SectionView(section) for name, section in sections.items()}
    return check(views, CONFLICT_RULES, facts={**resolved, **(facts or {})})
