"""Write the decisions on overlap to the sections of a model, an optimizer and DDP, and say what changed."""

from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mb_overlap import delay_rules, embedding_rules, exchange_rules
from mb_overlap.conditions import DELAY, EXCHANGE
from mb_overlap.conflicting import Conflict, apply
from mb_overlap.embedding_rules import DEFER
from mb_overlap.machine import Machine
from mb_overlap.resolve import (
    Decision,
    Layout,
    OverlapConflictError,
    resolve_overlap,
)
from mb_overlap.sections import own_name, read, write
from mb_overlap.targets import Sections

_WISH_RULES = {
    EXCHANGE: exchange_rules.WISH_RULES,
    DELAY: delay_rules.WISH_RULES,
    DEFER: embedding_rules.WISH_RULES,
}
_MODEL_RULES = {
    EXCHANGE: exchange_rules.MODEL_RULES,
    DELAY: delay_rules.MODEL_RULES,
    DEFER: embedding_rules.MODEL_RULES,
}
"""What Megatron Core would refuse, or could not keep, for a wish of the section and for the model's own switch."""


class OverlapRefusedError(ValueError):
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
class Plan:
    """What `setup` is about to do."""

    wishes: Mapping[str, Any]
    """Field to wish, values that the user set on the sections themselves included."""
    layout: Layout
    """What the rules looked at."""
    decisions: Mapping[str, Decision]
    """Field to decision."""
    changes: list[Change]
    """Fields that get another value."""
    refusals: list[Change]
    """Wishes that are not granted."""
    conflicts: list[Conflict]
    """Wishes that would end in an error, or in nothing, when the model is built."""


def make_plan(
    wishes: Mapping[str, Any], sections: Sections, *, machine: Machine, keep: Collection[str]
) -> Plan:
    """Decide everything, and write nothing; see `CommOverlapConfig.setup`."""
    dp = wishes.get("data_parallel_size")
    layout = sections.layout(dp=dp, transformer_engine=machine.transformer_engine)
    every_wish = {**wishes, **_kept(wishes, sections, keep=keep, layout=layout)}
    decisions = resolve_overlap(every_wish, layout)
    return Plan(
        wishes=every_wish,
        layout=layout,
        decisions=decisions,
        changes=list(_changes(decisions, sections)),
        refusals=list(_not_granted(wishes, decisions, sections)),
        conflicts=wish_conflicts(wishes, sections, decisions, machine=machine, asked=every_wish),
    )


def carry_out(plan: Plan, sections: Sections, *, strict: bool) -> list[Change]:
    """Write the changes, and return them with the refusals.

    Raises:
        OverlapConflictError: the plan has conflicts; nothing is written.
        OverlapRefusedError: `strict`, and the plan has refusals; nothing is written.
    """
    if plan.conflicts:
        raise OverlapConflictError("\n".join(map(str, plan.conflicts)), conflicts=plan.conflicts)
    if strict and plan.refusals:
        raise OverlapRefusedError(
            "\n".join(f"[{change.rule}] {change.field}: {change.why}" for change in plan.refusals)
        )
    parts = {"model": sections.model, "optimizer": sections.optimizer, "ddp": sections.ddp}
    for change in plan.changes:
        path, _, name = change.field.partition(".")
        write(parts[path], name, change.new)
    return [*plan.changes, *plan.refusals, *_own_settings_of_the_engine(plan, sections)]


def _own_settings_of_the_engine(plan: Plan, sections: Sections) -> Iterator[Change]:
    """Yield a note where Megatron-LM's command line has tensor-parallel overlap without settings of the GEMMs."""
    name, overlap = "tp_comm_overlap_cfg", plan.decisions.get("tp_comm_overlap")
    if (
        overlap is None
        or not overlap.value
        or name in plan.wishes
        or not isinstance(sections.model, Namespace)
    ):
        return
    if own_name(sections.model, name) is not None and read(sections.model, name) is None:
        yield Change(
            field=f"model.{name}",
            old=None,
            new=None,
            why="no settings were given, so Transformer Engine uses its own for every GEMM; find_preset knows tuned "
            "ones, and the command line takes the path of a file with them",
            rule="O20",
        )


def wish_conflicts(
    wishes: Mapping[str, Any],
    sections: Sections,
    decisions: Mapping[str, Decision],
    *,
    machine: Machine,
    asked: Mapping[str, Any],
) -> list[Conflict]:
    """Return what is wrong with the wishes that are on, as the sections will stand.

    Args:
        wishes: of the section.
        sections: as they stand.
        decisions: what will be written to them.
        machine: where the model will run.
        asked: the wishes, and what the user set on the model itself.
    """
    known = {
        "comm_overlap": wishes,
        "model": _After(sections.model, decisions),
        "ddp": _After(sections.ddp, decisions),
        "facts": {
            "resolved": True,
            "transformer_engine_version": machine.transformer_engine_version,
            "torch_version": machine.torch_version,
        },
    }
    rules = [
        _WISH_RULES[name] if wishes.get(name) else _MODEL_RULES[name]
        for name in _WISH_RULES
        if asked.get(name)
    ]
    return [conflict for each in rules for conflict in apply(each, known)]


class _After(Mapping[str, object]):
    """A section as it will stand: decided values over its own."""

    def __init__(self, section: object, decisions: Mapping[str, Decision]) -> None:
        self._section = section
        self._decided = {
            name: decision.value for name, decision in decisions.items() if decision.value is not None
        }

    def __getitem__(self, name: str) -> object:
        if own_name(self._section, name) is None:
            raise KeyError(name)
        return self._decided.get(name, read(self._section, name))

    def __contains__(self, name: object) -> bool:
        return own_name(self._section, str(name)) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._decided)

    def __len__(self) -> int:
        return len(self._decided)


def _kept(
    wishes: Mapping[str, Any], sections: Sections, *, keep: Collection[str], layout: Layout
) -> dict[str, object]:
    """Return the values that the user set on the sections themselves, as wishes."""
    origins = {name: f"comm_overlap.{name}" for name in wishes}
    stated = dict(wishes)
    kept: dict[str, object] = {}
    for path, section, name in sections.targets():
        if f"{path}.{name}" not in keep or (path != "model" and not layout.distributed_optimizer):
            continue
        value = read(section, name)
        if name in stated and stated[name] != value:
            conflict = _contradiction(f"{path}.{name}", value, origins[name], stated[name])
            raise OverlapConflictError(str(conflict), conflicts=[conflict])
        origins[name] = f"{path}.{name}"
        stated[name] = kept[name] = value
    return kept


def _contradiction(path: str, value: object, origin: str, stated: object) -> Conflict:
    return Conflict(
        id="O15",
        severity="error",
        fields=(path, origin),
        values={path: value, origin: stated},
        message=f"contradicts {origin} ({value} against {stated})",
        why="both are wishes and only one can stand",
        fix="Make them equal, or leave one of them unset.",
    )


def _changes(decisions: Mapping[str, Decision], sections: Sections) -> Iterator[Change]:
    """Yield each change once, also where one namespace serves as several sections."""
    seen = set()
    for path, section, name in sections.targets():
        change = _change(decisions.get(name), section, name, path=path)
        if change is not None and (id(section), name) not in seen:
            seen.add((id(section), name))
            yield change


def _change(decision: Decision | None, section: object, name: str, *, path: str) -> Change | None:
    if decision is None or decision.value is None or read(section, name) == decision.value:
        return None
    return Change(
        field=f"{path}.{own_name(section, name)}",
        old=read(section, name),
        new=decision.value,
        why=decision.why,
        rule=decision.rule,
    )


def _not_granted(
    wishes: Mapping[str, Any], decisions: Mapping[str, Decision], sections: Sections
) -> Iterator[Change]:
    """Yield a warning for each wish that the sections will not hold when all is written."""
    for name, decision in decisions.items():
        if name not in wishes:
            continue
        wish = wishes[name]
        held = [
            read(section, name) if decision.value is None else decision.value
            for _, section, field in sections.targets()
            if field == name
        ]
        if held == [wish] * len(held) and (held or wish is False):
            continue
        yield Change(
            field=f"comm_overlap.{name}",
            old=wish,
            new=decision.value if decision.refused else None,
            why=decision.why if decision.refused else _nowhere(name, sections.model),
            rule=decision.rule if decision.refused else "O20",
            severity="warning",
        )


def _nowhere(name: str, model: object) -> str:
    if own_name(model, name) is not None:
        return (
            "has nowhere to go, because the command line of Megatron-LM takes the path of a YAML file. Write "
            "to_transformer_engine(...) to one as JSON, and name it there"
        )
    return f"has nowhere to go, because no section has a field {name}"
