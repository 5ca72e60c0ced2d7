"""Fields of sections, which are objects or mappings with Megatron's field names, and limits on the sizes in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal

from mb_plan.errors import PlanError
from mb_schema.cuda_graphs import captures_full_iteration, module_names

_ABSENT = object()
Graphs = Literal["step"] | tuple[str, ...]
"""CUDA graphs: of the whole step, or of modules of a layer, with Megatron's names; empty: none."""
MODULES = ("attn", "mamba", "mlp", "moe")
"""Modules in graphs of whole layers."""


def read_field(section: object, name: str, default: Any = None) -> Any:
    """Return a field of an object or a mapping, or of its mapping `transformer`, or the default."""
    value = _own(section, name)
    if value is _ABSENT:
        extra = _own(section, "transformer")
        value = extra.get(name, _ABSENT) if isinstance(extra, Mapping) else _ABSENT
    return default if value is _ABSENT else value


def _own(section: object, name: str) -> Any:
    if isinstance(section, Mapping):
        return section.get(name, _ABSENT)
    return getattr(section, name, _ABSENT)


def as_word(value: Any) -> str | None:
    """Return the name of a member of an enum or of a function, the text of another value, or None."""
    if value is None or isinstance(value, str):
        return value
    return str(value.name if isinstance(value, Enum) else getattr(value, "__name__", value))


def read_graphs(model: object) -> Graphs:
    """Return what of a model is in CUDA graphs; Megatron takes whole layers if no modules are named."""
    impl = as_word(read_field(model, "cuda_graph_impl")) or "none"
    modules = read_field(model, "cuda_graph_modules"), read_field(model, "cuda_graph_scope")
    if captures_full_iteration(impl, *modules):
        return "step"
    return () if impl == "none" else tuple(sorted(module_names(*modules))) or MODULES


MAX_LAYERS = 10_000
"""Maximum number of layers of each kind."""
MAX_STAGES = 1_024
"""Maximum number of pipeline stages, including virtual ones, and of consecutive microbatches of a virtual stage."""

_LAYERS = ("num_layers", "encoder_num_layers", "vision_num_layers", "mtp_num_layers")
_STAGES = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")


def reject_huge_model(size_of: Callable[[str], Any]) -> None:
    """Reject a model with more layers or stages than the limits.

    Args:
        size_of: Function that returns a field of the model section, or None if it is not set.

    Raises:
        PlanError: If a limit is exceeded.
    """
    for name in _LAYERS:
        reject_more_than(name, size_of(name) or 0, "layers", most=MAX_LAYERS)
    pp, vp = (size_of(name) or 1 for name in _STAGES)
    larger = _STAGES[1] if vp > pp else _STAGES[0]
    reject_more_than(larger, pp * vp, "stages", most=MAX_STAGES)


def reject_more_than(name: str, number: int, unit: str, *, most: int) -> None:
    """Reject a number above `most`.

    Raises:
        PlanError: If the number is above `most`.
    """
    if number > most:
        raise PlanError(
            f"model.{name}: {number:,} {unit} exceed the limit of {most:,}, because each is processed separately. "
            "Lower it."
        )
