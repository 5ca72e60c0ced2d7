"""Write the decisions on overlap to the sections of a model, an optimizer and DDP, and say what changed."""

from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mb_overlap import delayed_wgrad_rules, embedding_rules, expert_overlap_rules
from mb_overlap.conditions import DELAY_WGRAD, EP_OVERLAP
from mb_overlap.embedding_rules import DEFER_EMBEDDING_WGRAD
from mb_overlap.field_access import field_name, read_field, write_field
from mb_overlap.resolve import Decision, OverlapConflictError, ParallelLayout, resolve_overlap
from mb_overlap.software_versions import SoftwareVersions
from mb_overlap.target_sections import TargetSections
from mb_overlap.violations import Conflict, check_rules

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
"""What Megatron Core would refuse, or could not keep, for a wish of the section and for the model's own switch."""


class OverlapRejectedError(ValueError):
    """What was asked for cannot be had, and the caller wants all of it or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field that got another value, or one wish that was not granted."""

    field: str
    """Path, such as `ddp.bucket_size`; of a warning the wish, such as `comm_overlap.tp_comm_overlap`."""
    old: object
    """The value before; of a warning the wish."""
    new: object
    """The value now; of a warning what stands instead, None where the wish has nowhere to go."""
    why: str
    """Reason, with the values that decided."""
    rule: str
    """Id of the rule that decided."""
    severity: Literal["info", "warning"] = "info"
    """A warning is about a wish that was not granted; the `comm_overlap` section itself is as it was."""

    def __str__(self) -> str:
        return f"{self.field}: {self.old} -> {self.new} ({self.rule}: {self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapPlan:
    """What `setup` is about to do."""

    requests: Mapping[str, Any]
    """Field to wish, values that the user set on the sections themselves included."""
    layout: ParallelLayout
    """What the rules looked at."""
    decisions: Mapping[str, Decision]
    """Field to decision."""
    changes: list[Change]
    """Fields that get another value."""
    rejections: list[Change]
    """Wishes that are not granted."""
    conflicts: list[Conflict]
    """Wishes that would end in an error, or in nothing, when the model is built."""


def make_plan(
    requests: Mapping[str, Any],
    sections: TargetSections,
    *,
    versions: SoftwareVersions,
    keep: Collection[str],
) -> OverlapPlan:
    """Decide everything, and write nothing; see `CommOverlapConfig.setup`."""
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


def apply_plan(plan: OverlapPlan, sections: TargetSections, *, strict: bool) -> list[Change]:
    """Write the changes, and return them with the refusals.

    Raises:
        OverlapConflictError: the plan has conflicts; nothing is written.
        OverlapRefusedError: `strict`, and the plan has refusals; nothing is written.
    """
    if plan.conflicts:
        raise OverlapConflictError("\n".join(map(str, plan.conflicts)), conflicts=plan.conflicts)
    if strict and plan.rejections:
        raise OverlapRejectedError(
            "\n".join(f"[{change.rule}] {change.field}: {change.why}" for change in plan.rejections)
        )
    parts = {"model": sections.model, "optimizer": sections.optimizer, "ddp": sections.ddp}
    for change in plan.changes:
        path, _, name = change.field.partition(".")
        write_field(parts[path], name, change.new)
    return [*plan.changes, *plan.rejections, *_te_default_settings_note(plan, sections)]


def _te_default_settings_note(plan: OverlapPlan, sections: TargetSections) -> Iterator[Change]:
    """Yield a note where Megatron-LM's command line has tensor-parallel overlap without settings of the GEMMs."""
    name, overlap = "tp_comm_overlap_cfg", plan.decisions.get("tp_comm_overlap")
    if (
        overlap is None
        or not overlap.value
        or name in plan.requests
        or not isinstance(sections.model, Namespace)
    ):
        return
    if field_name(sections.model, name) is not None and read_field(sections.model, name) is None:
        yield Change(
            field=f"model.{name}",
            old=None,
            new=None,
            why="no settings were given, so Transformer Engine uses its own for every GEMM; find_preset knows tuned "
            "ones, and the command line takes the path of a file with them",
            rule="O20",
        )


def find_request_conflicts(
    requests: Mapping[str, Any],
    sections: TargetSections,
    decisions: Mapping[str, Decision],
    *,
    versions: SoftwareVersions,
    requested: Mapping[str, Any],
) -> list[Conflict]:
    """Return what is wrong with the wishes that are on, as the sections will stand.

    Args:
        requests: fields that the section sets.
        sections: as they stand.
        decisions: what will be written to them.
        versions: installed software.
        requested: `requests`, and the values that the user set on the model itself.
    """
    known = {
        "comm_overlap": requests,
        "model": _SectionAfterSetup(sections.model, decisions),
        "ddp": _SectionAfterSetup(sections.ddp, decisions),
        "facts": {
            "resolved": True,
            "transformer_engine_version": versions.transformer_engine_version,
            "torch_version": versions.torch_version,
        },
    }
    rules = [
        _SECTION_RULES[name] if requests.get(name) else _MODEL_RULES[name]
        for name in _SECTION_RULES
        if requested.get(name)
    ]
    return [conflict for each in rules for conflict in check_rules(each, known)]


class _SectionAfterSetup(Mapping[str, object]):
    """A section as it will stand: decided values over its own."""

    def __init__(self, section: object, decisions: Mapping[str, Decision]) -> None:
        self._section = section
        self._decided = {
            name: decision.value for name, decision in decisions.items() if decision.value is not None
        }

    def __getitem__(self, name: str) -> object:
        if field_name(self._section, name) is None:
            raise KeyError(name)
        return self._decided.get(name, read_field(self._section, name))

    def __contains__(self, name: object) -> bool:
        return field_name(self._section, str(name)) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._decided)

    def __len__(self) -> int:
        return len(self._decided)


def _kept_values(
    requests: Mapping[str, Any], sections: TargetSections, *, keep: Collection[str], layout: ParallelLayout
) -> dict[str, object]:
    """Return the values that the user set on the sections themselves, as wishes."""
    origins = {name: f"comm_overlap.{name}" for name in requests}
    origin_values = dict(requests)
    kept: dict[str, object] = {}
    for path, section, name in sections.targets():
        if f"{path}.{name}" not in keep or (path != "model" and not layout.distributed_optimizer):
            continue
        value = read_field(section, name)
        if name in origin_values and origin_values[name] != value:
            conflict = _contradiction(f"{path}.{name}", value, origins[name], origin_values[name])
            raise OverlapConflictError(str(conflict), conflicts=[conflict])
        origins[name] = f"{path}.{name}"
        origin_values[name] = kept[name] = value
    return kept


def _contradiction(path: str, value: object, origin: str, origin_values: object) -> Conflict:
    return Conflict(
        id="O15",
        severity="error",
        fields=(path, origin),
        values={path: value, origin: origin_values},
        message=f"contradicts {origin} ({value} against {origin_values})",
        why="both are wishes and only one can stand",
        fix="Make them equal, or leave one of them unset.",
    )


def _changes(decisions: Mapping[str, Decision], sections: TargetSections) -> Iterator[Change]:
    """Yield each change once, also where one namespace serves as several sections."""
    seen = set()
    for path, section, name in sections.targets():
        change = _change(decisions.get(name), section, name, path=path)
        if change is not None and (id(section), name) not in seen:
            seen.add((id(section), name))
            yield change


def _change(decision: Decision | None, section: object, name: str, *, path: str) -> Change | None:
    if decision is None or decision.value is None or read_field(section, name) == decision.value:
        return None
    return Change(
        field=f"{path}.{field_name(section, name)}",
        old=read_field(section, name),
        new=decision.value,
        why=decision.why,
        rule=decision.rule,
    )


def _rejections(
    requests: Mapping[str, Any], decisions: Mapping[str, Decision], sections: TargetSections
) -> Iterator[Change]:
    """Yield a warning for each wish that the sections will not hold when all is written."""
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
        yield Change(
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
            "has nowhere to go, because the command line of Megatron-LM takes the path of a YAML file. Write "
            "to_transformer_engine(...) to one as JSON, and name it there"
        )
    return f"has nowhere to go, because no section has a field {name}"
