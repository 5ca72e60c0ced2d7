"""Setup of the model, optimizer and DDP sections: apply the overlap decisions and return the changes."""

from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mb_overlap.errors import OverlapError
from mb_overlap.field_access import SectionView, field_name, read_field, write_field
from mb_overlap.resolve import Decision, OverlapConflictError, ParallelLayout, resolve_overlap
from mb_overlap.rules import delayed_wgrad as delayed_wgrad_rules
from mb_overlap.rules import embedding as embedding_rules
from mb_overlap.rules import expert_overlap as expert_overlap_rules
from mb_overlap.rules.conditions import DELAY_WGRAD, EP_OVERLAP
from mb_overlap.rules.embedding import DEFER_EMBEDDING_WGRAD
from mb_overlap.software_versions import SoftwareVersions
from mb_overlap.target_sections import TargetSections
from mb_schema.rules import Problem, check

_SECTION_RULES = {
    EP_OVERLAP: expert_overlap_rules.SECTION_RULES,
    DELAY_WGRAD: delayed_wgrad_rules.SECTION_RULES,
    DEFER_EMBEDDING_WGRAD: embedding_rules.SECTION_RULES,
}
_MODEL_RULES = {
    EP_OVERLAP: expert_overlap_rules.MODEL_RULES,
    DELAY_WGRAD: delayed_wgrad_rules.MODEL_RULES,
    DEFER_EMBEDDING_WGRAD: embedding_rules.MODEL_RULES,
}
"""Requirements of Megatron Core, for a field of the `comm_overlap` section and for the model's own field."""


class OverlapRejectedError(OverlapError, ValueError):
    """A requested option is not available, and `strict` is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapChange:
    """Changed value of a field, or a requested option that was rejected."""

    field: str
    """Path, such as `ddp.bucket_size`; for a warning the requested field, such as `comm_overlap.tp_comm_overlap`."""
    old: object
    """Previous value; for a warning the requested value."""
    new: object
    """New value; for a warning the value used instead, None if no section can hold the requested value."""
    why: str
    """Reason, with the deciding values."""
    rule: str
    """Id of the deciding rule."""
    severity: Literal["info", "warning"] = "info"
    """"warning" for a rejected request; the `comm_overlap` section itself remains unchanged."""

    def __str__(self) -> str:
        return f"{self.field}: {_shown(self.old)} -> {_shown(self.new)} ({self.rule}: {self.why})"


def _shown(value: object) -> object:
    """Return a value for one line of text: the settings of GEMMs as their number."""
    return f"settings of {len(value)} GEMMs" if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapPlan:
    """Changes that `setup` is about to apply."""

    requests: Mapping[str, Any]
    """Field to requested value, including the values that the user set on the sections themselves."""
    layout: ParallelLayout
    """Values that the rules read."""
    decisions: Mapping[str, Decision]
    """Field to decision."""
    changes: list[OverlapChange]
    """Fields whose value changes."""
    rejections: list[OverlapChange]
    """Requested options that are rejected."""
    conflicts: list[Problem]
    """Requested options that fail, or have no effect, when the model is built."""


def make_plan(
    requests: Mapping[str, Any],
    sections: TargetSections,
    *,
    versions: SoftwareVersions,
    keep: Collection[str],
) -> OverlapPlan:
    """Return all decisions without writing anything; see `CommOverlapConfig.setup`."""
    dp = requests.get("data_parallel_size")
    layout = sections.layout(dp=dp, transformer_engine=versions.transformer_engine)
    all_requests = {**requests, **_kept_values(requests, sections, keep=keep, layout=layout)}
    decisions = resolve_overlap(all_requests, layout)
    return OverlapPlan(
        requests=all_requests,
        layout=layout,
        decisions=decisions,
        changes=list(_changes(decisions, sections)),
        rejections=list(_rejections(requests, decisions, sections)),
        conflicts=find_request_conflicts(
            requests, sections, decisions, versions=versions, requested=all_requests
        ),
    )


def apply_plan(plan: OverlapPlan, sections: TargetSections, *, strict: bool) -> list[OverlapChange]:
    """Write the changes, and return them with the rejections.

    Raises:
        OverlapConflictError: the plan has conflicts; nothing is written.
        OverlapRejectedError: `strict`, and the plan has rejections; nothing is written.
    """
    # Raise before the first write: a caller that handles the error finds its sections unchanged.
    if plan.conflicts:
        raise OverlapConflictError(plan.conflicts)
    if strict and plan.rejections:
        raise OverlapRejectedError(
            "\n".join(f"[{change.rule}] {change.field}: {change.why}" for change in plan.rejections)
        )
    parts = {"model": sections.model, "optimizer": sections.optimizer, "ddp": sections.ddp}
    for change in plan.changes:
        path, _, name = change.field.partition(".")
        write_field(parts[path], name, change.new)
    return [*plan.changes, *plan.rejections, *_te_default_settings_note(plan, sections)]


def _te_default_settings_note(plan: OverlapPlan, sections: TargetSections) -> Iterator[OverlapChange]:
    """Yield a note if Megatron-LM's command line enables tensor-parallel overlap without GEMM settings."""
    name, overlap = "tp_comm_overlap_cfg", plan.decisions.get("tp_comm_overlap")
    if (
        overlap is None
        or not overlap.value
        or name in plan.requests
        or not isinstance(sections.model, Namespace)
    ):
        return
    if field_name(sections.model, name) is not None and read_field(sections.model, name) is None:
        yield OverlapChange(
            field=f"model.{name}",
            old=None,
            new=None,
            why="no settings are given, so Transformer Engine uses its defaults for every GEMM; find_preset returns "
            "tuned settings, and the command line takes the path of a file with them",
            rule="O20",
        )


def find_request_conflicts(
    requests: Mapping[str, Any],
    sections: TargetSections,
    decisions: Mapping[str, Decision],
    *,
    versions: SoftwareVersions,
    requested: Mapping[str, Any],
) -> list[Problem]:
    """Return the violated rules of the requested options, on the values that the sections will have.

    Args:
        requests: fields that the `comm_overlap` section sets.
        sections: sections before the decisions are written.
        decisions: values to be written to the sections.
        versions: installed software.
        requested: `requests`, and the values that the user set on the model itself.
    """
    decided = {name: decision.value for name, decision in decisions.items() if decision.value is not None}
    checked_sections = {
        "comm_overlap": requests,
        "model": SectionView(sections.model, decided),
        "ddp": SectionView(sections.ddp, decided),
    }
    facts = {
        "resolved": True,
        "transformer_engine_version": versions.transformer_engine_version,
        "torch_version": versions.torch_version,
    }
    rules = [
        _SECTION_RULES[name] if requests.get(name) else _MODEL_RULES[name]
        for name in _SECTION_RULES
        if requested.get(name)
    ]
    return check(checked_sections, [rule for group in rules for rule in group], facts=facts)


def _kept_values(
    requests: Mapping[str, Any], sections: TargetSections, *, keep: Collection[str], layout: ParallelLayout
) -> dict[str, object]:
    """Return the values that the user set on the sections themselves, as requested values."""
    origins = {name: f"comm_overlap.{name}" for name in requests}
    origin_values = dict(requests)
    kept_values: dict[str, object] = {}
    for path, section, name in sections.targets():
        if f"{path}.{name}" not in keep or (path != "model" and not layout.distributed_optimizer):
            continue
        value = read_field(section, name)
        if name in origin_values and origin_values[name] != value:
            conflict = _contradiction(f"{path}.{name}", value, origins[name], origin_values[name])
            raise OverlapConflictError([conflict])
        origins[name] = f"{path}.{name}"
        origin_values[name] = kept_values[name] = value
    return kept_values


def _contradiction(path: str, value: object, origin: str, origin_value: object) -> Problem:
    return Problem(
        id="O15",
        severity="error",
        fields=(path, origin),
        values={path: value, origin: origin_value},
        message=f"contradicts {origin} ({value} against {origin_value})",
        why="both are set by the user and only one can apply",
        fix="Set equal values, or leave one of them unset.",
    )


def _changes(decisions: Mapping[str, Decision], sections: TargetSections) -> Iterator[OverlapChange]:
    """Yield each change once, even if one namespace serves as several sections."""
    reported = set()
    for path, section, name in sections.targets():
        change = _change(decisions.get(name), section, name, path=path)
        if change is not None and (id(section), name) not in reported:
            reported.add((id(section), name))
            yield change


def _change(decision: Decision | None, section: object, name: str, *, path: str) -> OverlapChange | None:
    if decision is None or decision.value is None or read_field(section, name) == decision.value:
        return None
    return OverlapChange(
        field=f"{path}.{field_name(section, name)}",
        old=read_field(section, name),
        new=decision.value,
        why=decision.why,
        rule=decision.rule,
    )


def _rejections(
    requests: Mapping[str, Any], decisions: Mapping[str, Decision], sections: TargetSections
) -> Iterator[OverlapChange]:
    """Yield a warning for each requested value that the sections do not hold after setup."""
    for name, decision in decisions.items():
        if name not in requests:
            continue
        requested = requests[name]
        held = [
            read_field(section, name) if decision.value is None else decision.value
            for _, section, field in sections.targets()
            if field == name
        ]
        if held == [requested] * len(held) and (held or requested is False):
            continue
        yield OverlapChange(
            field=f"comm_overlap.{name}",
            old=requested,
            new=decision.value if decision.rejected else None,
            why=decision.why if decision.rejected else _unsupported_reason(name, sections.model),
            rule=decision.rule if decision.rejected else "O20",
            severity="warning",
        )


def _unsupported_reason(name: str, model: object) -> str:
    if field_name(model, name) is not None:
        return (
            "cannot be stored, because the command line of Megatron-LM takes the path of a YAML file. Write "
            "to_transformer_engine(...) to a file as JSON, and pass its path there"
        )
    return f"cannot be stored, because no section has the field {name}"
