"""Explanations of which overlap is enabled, which rule decided, and how to enable the rest."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mb_overlap.field_access import read_field
from mb_overlap.resolve import Decision
from mb_overlap.rules.conditions import EP_OVERLAP
from mb_overlap.rules.embedding import DEFER_EMBEDDING_WGRAD
from mb_overlap.rules.tensor import NEEDS, needs_tensor_parallel
from mb_overlap.setup import OverlapPlan, OverlapRejectedError, find_request_conflicts, make_plan
from mb_overlap.software_versions import SoftwareVersions, detect_versions
from mb_overlap.target_sections import TargetSections

if TYPE_CHECKING:
    from mb_overlap.config import CommOverlapConfig

KINDS = {
    "tensor parallel": "tp_comm_overlap",
    "pipeline": "overlap_p2p_comm",
    "gradients": "overlap_grad_reduce",
    "parameters": "overlap_param_gather",
    "experts": EP_OVERLAP,
    "embedding gradient": DEFER_EMBEDDING_WGRAD,
}
"""Kind of overlap to the field that switches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """State of one kind of overlap, the rule that decided it, and how to enable it."""

    kind: str
    """Kind of communication."""
    field: str
    """Field that enables it."""
    on: bool
    """Whether the communication overlaps with computation."""
    decided_by: str | None
    """Id of the rule, "O15" for a value that the user set; None if the section's value is kept."""
    why: str
    """Reason, with the deciding values."""
    how_to_enable: str | None
    """Settings that enable it; None if it is on."""

    def __str__(self) -> str:
        decided = self.why if self.decided_by is None else f"{self.decided_by}: {self.why}"
        line = f"{self.kind:<20}{'on ' if self.on else 'off'}  {decided}"
        return line if self.how_to_enable is None else f"{line}; to enable it: {self.how_to_enable}"


def explain(
    config: "CommOverlapConfig",
    model_config: object,
    optimizer_config: object,
    ddp_config: object,
    *,
    transformer_engine: bool | None = None,
    facts: Mapping[str, object] | None = None,
    keep: Collection[str] = (),
    strict: bool = False,
) -> list[Explanation]:
    """Return one record per kind of overlap. Each record prints as one line.

    Takes the arguments of `CommOverlapConfig.setup`, describes the result and writes nothing. A requested option that
    `setup` rejects (rules O01, O08, O09, O10) is reported as off, with the reason.

    Raises:
        DataParallelSizeError: as in `setup`.
        OverlapConflictError: requested options contradict each other, or break the pipeline schedule.
        OverlapRejectedError: `strict`, and a requested option is not available.
        AttributeError: as in `setup`.
    """
    sections = TargetSections(model=model_config, optimizer=optimizer_config, ddp=ddp_config)
    versions = detect_versions(transformer_engine, facts or {})
    plan = make_plan(config.requested_fields(), sections, versions=versions, keep=keep)
    if strict and (plan.rejections or plan.conflicts):
        rejected = [f"[{change.rule}] {change.field}: {change.why}" for change in plan.rejections]
        raise OverlapRejectedError("\n".join([*(conflict.line for conflict in plan.conflicts), *rejected]))
    return [_explanation(kind, field, plan, sections, versions) for kind, field in KINDS.items()]


def _explanation(
    kind: str, field: str, plan: OverlapPlan, sections: TargetSections, versions: SoftwareVersions
) -> Explanation:
    """Return the state of one field: by a violated rule, else by the decision of the plan, else by its value."""
    held = [(path, read_field(section, name)) for path, section, name in sections.targets() if name == field]
    decision = plan.decisions.get(field)
    violated = [conflict for conflict in plan.conflicts if conflict.fields[0].endswith(f".{field}")]
    if not held:
        on, rule, why = False, None, f"no section has the field {field}"
    elif violated:
        on, rule, why = False, violated[0].id, "; ".join(conflict.message for conflict in violated)
    elif decision is None:
        path, value = held[-1]
        on, rule, why = bool(value), None, f"{path}.{field}={value} is kept: no rule decides it"
    else:
        on = bool(held[-1][1] if decision.value is None else decision.value)
        rule, why = decision.rule, _reason(field, decision, plan)
    how_to_enable = None
    if not on:
        how_to_enable = (
            _how_to_enable(field, plan, sections, versions) if held else "use sections with this field"
        )
    return Explanation(kind=kind, field=field, on=on, decided_by=rule, why=why, how_to_enable=how_to_enable)


def _reason(field: str, decision: Decision, plan: OverlapPlan) -> str:
    if field == "tp_comm_overlap" and decision.value and "tp_comm_overlap_cfg" not in plan.decisions:
        return f"{decision.why}; Transformer Engine's default settings (find_preset returns tuned settings)"
    return decision.why


def _how_to_enable(
    field: str, plan: OverlapPlan, sections: TargetSections, versions: SoftwareVersions
) -> str:
    """Return the settings that enable a field that is off, joined to one text."""
    layout = plan.layout
    if field == "tp_comm_overlap":
        return _join_steps([*_section_setting(field, plan), *_tensor_parallel_needs(plan)])
    if field == "overlap_p2p_comm":
        if layout.pp < 2:
            return "model.pipeline_model_parallel_size=2 or more, with model.virtual_pipeline_model_parallel_size"
        if not layout.interleaved:
            return "model.virtual_pipeline_model_parallel_size=2 or more"
        return "comm_overlap.overlap_p2p_comm=null and comm_overlap.batch_p2p_comm=null"
    if field in ("overlap_grad_reduce", "overlap_param_gather"):
        return _how_to_enable_data_parallel(field, plan)
    # Check the rules as if the option were requested and on: the violated ones are what is missing.
    assumed = {**plan.requests, field: True}
    decisions = {**plan.decisions, field: _ASSUMED_ON}
    lacking = find_request_conflicts(assumed, sections, decisions, versions=versions, requested={field: True})
    fixes = [conflict.fix.partition(", or ")[0].removeprefix("Set ") for conflict in lacking]
    return _join_steps([*_section_setting(field, plan), *fixes])


_ASSUMED_ON = Decision(value=True, rule="O15", why="assumed")


def _section_setting(field: str, plan: OverlapPlan) -> list[str]:
    return [] if plan.requests.get(field) else [f"comm_overlap.{field}=true"]


def _tensor_parallel_needs(plan: OverlapPlan) -> list[str]:
    requested = {"comm_overlap.tp_comm_overlap": True, **plan.layout.values()}
    with_tp = {**requested, "model.tensor_model_parallel_size": max(plan.layout.tp, 2)}
    return [
        rule.fix.partition(" or comm_overlap")[0]
        .removeprefix("Set ")
        .removesuffix(",")
        .removeprefix("Install ")
        for rule in NEEDS
        if rule.message(requested if rule is needs_tensor_parallel else with_tp)
    ]


def _how_to_enable_data_parallel(field: str, plan: OverlapPlan) -> str:
    layout = plan.layout
    if not layout.distributed_optimizer:
        return (
            f"ddp.use_distributed_optimizer=true, or ddp.{field}=true directly"
            if field == "overlap_grad_reduce"
            else "ddp.use_distributed_optimizer=true"
        )
    if plan.requests.get(field) is False:
        return f"comm_overlap.{field}=null, and no {field}=false on ddp or optimizer"
    return "more processes than tensor, pipeline and context parallelism use"


def _join_steps(steps: list[str]) -> str:
    return " and ".join(steps) or "no known setting"
