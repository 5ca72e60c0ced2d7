"""Why each kind of overlap is on or off, one line a kind."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from mb_overlap.resolve import Decision
from mb_overlap.setup import ModelSection, Sections, decide

if TYPE_CHECKING:
    from mb_overlap.config import CommOverlapConfig

_KINDS = {
    "tensor parallel": "tp_comm_overlap",
    "pipeline": "overlap_p2p_comm",
    "gradients": "overlap_grad_reduce",
    "parameters": "overlap_param_gather",
    "experts": "overlap_moe_expert_parallel_comm",
    "embedding gradient": "defer_embedding_wgrad_compute",
}


def explain(
    config: "CommOverlapConfig",
    model_config: ModelSection,
    optimizer_config: object,
    ddp_config: object,
    *,
    transformer_engine: bool | None = None,
    keep: Collection[str] = (),
) -> str:
    """Return one line for each kind of overlap: on or off, and the rule or wish that decides.

    Takes what `CommOverlapConfig.setup` takes, says what that would do, and writes nothing.

    Raises:
        DataParallelSizeError: as `setup`.
        OverlapConflictError: as `setup`.
    """
    sections = Sections(model=model_config, optimizer=optimizer_config, ddp=ddp_config)
    decisions = decide(config.wishes(), sections, transformer_engine=transformer_engine, keep=keep)
    return "\n".join(_line(kind, field, decisions, sections) for kind, field in _KINDS.items())


def _line(kind: str, field: str, decisions: Mapping[str, Decision], sections: Sections) -> str:
    held = [(path, getattr(section, name)) for path, section, name in sections.targets() if name == field]
    if not held:
        return f"{kind:<20}off  no section has the field {field}"
    decision = decisions.get(field)
    if decision is None:
        path, value = held[-1]
        return f"{kind:<20}{_state(value)}{path}.{field}={value} stands: no rule decides it"
    value = held[-1][1] if decision.value is None else decision.value
    return f"{kind:<20}{_state(value)}{decision.rule}: {decision.why}"


def _state(value: object) -> str:
    return "on   " if value else "off  "
