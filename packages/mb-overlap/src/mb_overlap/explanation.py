"""Why each kind of overlap is on or off, and what would switch it on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mb_overlap.conditions import EXCHANGE
from mb_overlap.embedding_rules import DEFER
from mb_overlap.machine import Machine, look_around
from mb_overlap.resolve import Decision
from mb_overlap.sections import read
from mb_overlap.setup import OverlapRefusedError, Plan, make_plan, wish_conflicts
from mb_overlap.targets import Sections
from mb_overlap.tensor_rules import NEEDS

if TYPE_CHECKING:
    from mb_overlap.config import CommOverlapConfig

KINDS = {
    "tensor parallel": "tp_comm_overlap",
    "pipeline": "overlap_p2p_comm",
    "gradients": "overlap_grad_reduce",
    "parameters": "overlap_param_gather",
    "experts": EXCHANGE,
    "embedding gradient": DEFER,
}
"""Kind of overlap to the field that switches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One kind of overlap: on or off, what decided, what would switch it on."""

    kind: str
    """Which communication."""
    field: str
    """Name of its switch."""
    on: bool
    """Whether it will overlap."""
    decided_by: str | None
    """Id of the rule, "O15" for the user's wish; None where a section's own value stands."""
    why: str
    """Reason, with the values that decided."""
    to_switch_on: str | None
    """What would switch it on; None where it is on."""

    def __str__(self) -> str:
        decided = self.why if self.decided_by is None else f"{self.decided_by}: {self.why}"
        line = f"{self.kind:<20}{'on ' if self.on else 'off'}  {decided}"
        return line if self.to_switch_on is None else f"{line}; to switch it on: {self.to_switch_on}"


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
    """Return one record for each kind of overlap; printed, it is a line.

    Takes what `CommOverlapConfig.setup` takes, says what that would do, and writes nothing. A wish that `setup`
    would refuse to write (rules O01, O08, O09, O10) is off here, with the reason.

    Raises:
        DataParallelSizeError: as `setup`.
        OverlapConflictError: two wishes contradict each other, or would break the pipeline schedule.
        OverlapRefusedError: `strict`, and something was asked for that cannot be.
        AttributeError: as `setup`.
    """
    sections = Sections(model=model_config, optimizer=optimizer_config, ddp=ddp_config)
    machine = look_around(transformer_engine, facts or {})
    plan = make_plan(config.wishes(), sections, machine=machine, keep=keep)
    if strict and (plan.refusals or plan.conflicts):
        refused = [f"[{change.rule}] {change.field}: {change.why}" for change in plan.refusals]
        raise OverlapRefusedError("\n".join([*map(str, plan.conflicts), *refused]))
    return [_explanation(kind, field, plan, sections, machine) for kind, field in KINDS.items()]


def _explanation(kind: str, field: str, plan: Plan, sections: Sections, machine: Machine) -> Explanation:
    held = [(path, read(section, name)) for path, section, name in sections.targets() if name == field]
    decision = plan.decisions.get(field)
    broken = [conflict for conflict in plan.conflicts if conflict.fields[0].endswith(f".{field}")]
    if not held:
        on, rule, why = False, None, f"no section has the field {field}"
    elif broken:
        on, rule, why = False, broken[0].id, "; ".join(conflict.message for conflict in broken)
    elif decision is None:
        path, value = held[-1]
        on, rule, why = bool(value), None, f"{path}.{field}={value} stands: no rule decides it"
    else:
        on = bool(held[-1][1] if decision.value is None else decision.value)
        rule, why = decision.rule, _reason(field, decision, plan)
    to_switch_on = (
        None if on else _way(field, plan, sections, machine) if held else "use sections that have it"
    )
    return Explanation(kind=kind, field=field, on=on, decided_by=rule, why=why, to_switch_on=to_switch_on)


def _reason(field: str, decision: Decision, plan: Plan) -> str:
    if field == "tp_comm_overlap" and decision.value and "tp_comm_overlap_cfg" not in plan.decisions:
        return f"{decision.why}; Transformer Engine's own settings (find_preset knows tuned ones)"
    return decision.why


def _way(field: str, plan: Plan, sections: Sections, machine: Machine) -> str:
    layout = plan.layout
    if field == "tp_comm_overlap":
        return _list([*_asked(field, plan), *_tensor_parallel_needs(plan)])
    if field == "overlap_p2p_comm":
        if layout.pp < 2:
            return "model.pipeline_model_parallel_size=2 or more, with model.virtual_pipeline_model_parallel_size"
        if not layout.interleaved:
            return "model.virtual_pipeline_model_parallel_size=2 or more"
        return "comm_overlap.overlap_p2p_comm=null and comm_overlap.batch_p2p_comm=null"
    if field in ("overlap_grad_reduce", "overlap_param_gather"):
        return _data_parallel_way(field, plan)
    supposed = {**plan.wishes, field: True}
    decisions = {**plan.decisions, field: _ON}
    lacking = wish_conflicts(supposed, sections, decisions, machine=machine, asked={field: True})
    fixes = [conflict.fix.partition(", or ")[0].removeprefix("Set ") for conflict in lacking]
    return _list([*_asked(field, plan), *fixes])


_ON = Decision(value=True, rule="O15", why="supposed")


def _asked(field: str, plan: Plan) -> list[str]:
    return [] if plan.wishes.get(field) else [f"comm_overlap.{field}=true"]


def _tensor_parallel_needs(plan: Plan) -> list[str]:
    layout = plan.layout
    values = (
        (True, layout.tp),
        (True, max(layout.tp, 2), layout.sequence_parallel),
        (True, layout.transformer_engine),
        (True, layout.transformer_impl),
    )
    return [
        rule.fix.partition(" or comm_overlap")[0]
        .removeprefix("Set ")
        .removesuffix(",")
        .removeprefix("Install ")
        for rule, given in zip(NEEDS, values, strict=True)
        if rule.test(*given)
    ]


def _data_parallel_way(field: str, plan: Plan) -> str:
    layout = plan.layout
    if not layout.distributed_optimizer:
        return (
            f"ddp.use_distributed_optimizer=true, or ddp.{field}=true itself"
            if field == "overlap_grad_reduce"
            else "ddp.use_distributed_optimizer=true"
        )
    if plan.wishes.get(field) is False:
        return f"comm_overlap.{field}=null, and no {field}=false on ddp or optimizer"
    return "more processes than tensor, pipeline and context parallelism take"


def _list(steps: list[str]) -> str:
    return " and ".join(steps) or "nothing that is known here"
