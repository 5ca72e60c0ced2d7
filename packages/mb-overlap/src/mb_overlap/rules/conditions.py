"""Conditions on what a switch needs, for the switch of the `comm_overlap` section and for the model's own."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from mb_overlap.transformer_engine.te_versions import parse_version
from mb_schema.rules import Rule

EP_OVERLAP = "overlap_moe_expert_parallel_comm"
DELAY_WGRAD = "delay_wgrad_compute"


def on_switch(conditions: Iterable[Rule], switch: str) -> tuple[Rule, ...]:
    """Return the conditions as rules that apply while a switch is on, with the fix to turn it off.

    The id of a rule on the model's own switch ends with M.
    """
    return tuple(
        replace(
            condition,
            id=f"{condition.id}M" if switch.startswith("model.") else condition.id,
            fields=(switch, *condition.fields),
            parameters=("switch", *condition.parameters),
            test=if_requested(condition.test),
            fix=f"{condition.fix[:-1]}, or {switch}=false.",
            fails={switch: True, **condition.fails},
            passes={switch: True, **condition.passes},
        )
        for condition in conditions
    )


def if_requested(test: Callable[..., str | None]) -> Callable[..., str | None]:
    """Return a test that also takes the switch, and passes if the switch is off."""

    def guarded(switch: bool | None, **values: Any) -> str | None:
        return test(**values) if switch else None

    return guarded


def captured_modules(impl: object, modules: Any) -> frozenset[str]:
    """Return the names of the modules that Transformer Engine's CUDA graphs capture.

    Empty if complete layers are captured, or nothing.

    Args:
        impl: `cuda_graph_impl`.
        modules: `cuda_graph_modules`: a name, a list of names or of Megatron's enumeration members, or None.
    """
    if impl != "transformer_engine" or not modules:
        return frozenset()
    parts = modules.split(",") if isinstance(modules, str) else modules
    names = {(part if isinstance(part, str) else part.name).strip().lower() for part in parts}
    return frozenset(names - {"", "full"})


def is_older(version: str, *needed: int) -> bool:
    """Return whether a version is older than a release."""
    return parse_version(version) < needed
