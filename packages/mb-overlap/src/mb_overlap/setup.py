"""Write the decisions on overlap to the sections of a model, an optimizer and DDP, and say what changed."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from mb_overlap.resolve import (
    DATA_PARALLEL_FIELDS,
    MODEL_FIELDS,
    Decision,
    Layout,
    OverlapConflictError,
    resolve_overlap,
)


class ModelSection(Protocol):
    """What is read of a model's configuration."""

    @property
    def tensor_model_parallel_size(self) -> int:
        """Ranks in the tensor-parallel group."""

    @property
    def pipeline_model_parallel_size(self) -> int:
        """Pipeline stages."""

    @property
    def virtual_pipeline_model_parallel_size(self) -> int | None:
        """Model chunks in a stage; None counts as 1."""

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations are split along the sequence between tensor-parallel regions."""


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
class Sections:
    """The three sections that overlap is written to; any objects."""

    model: ModelSection
    """Read for its sizes; receives the tensor and pipeline settings."""
    optimizer: object
    """Receives the data-parallel settings."""
    ddp: object
    """Receives the data-parallel settings."""

    def targets(self) -> Iterator[tuple[str, object, str]]:
        """Yield (path of the section, section, field) for each field that exists there."""
        for path, section, names in (
            ("model", self.model, MODEL_FIELDS),
            ("optimizer", self.optimizer, DATA_PARALLEL_FIELDS),
            ("ddp", self.ddp, DATA_PARALLEL_FIELDS),
        ):
            yield from ((path, section, name) for name in names if hasattr(section, name))

    def layout(self, *, dp: int | None, transformer_engine: bool | None) -> Layout:
        """Return what the rules look at."""
        sharded = (getattr(part, "use_distributed_optimizer", False) for part in (self.ddp, self.optimizer))
        return Layout(
            tp=self.model.tensor_model_parallel_size,
            pp=self.model.pipeline_model_parallel_size,
            vp=self.model.virtual_pipeline_model_parallel_size,
            dp=dp,
            sequence_parallel=self.model.sequence_parallel,
            transformer_engine=transformer_engine,
            distributed_optimizer=any(sharded),
            num_buckets=getattr(self.ddp, "num_buckets", None),
        )


def set_up(
    wishes: Mapping[str, Any], sections: Sections, *, transformer_engine: bool | None, keep: Collection[str]
) -> list[Change]:
    """Write what this layout can overlap, and return what changed; see `CommOverlapConfig.setup`."""
    decisions = decide(wishes, sections, transformer_engine=transformer_engine, keep=keep)
    changes = [
        change
        for path, section, name in sections.targets()
        if (change := _write(decisions.get(name), section, name, path=path)) is not None
    ]
    return [*changes, *_not_granted(wishes, decisions, sections)]


def decide(
    wishes: Mapping[str, Any], sections: Sections, *, transformer_engine: bool | None, keep: Collection[str]
) -> dict[str, Decision]:
    """Return the decision on each field, and write nothing."""
    if transformer_engine is None:
        transformer_engine = find_spec("transformer_engine") is not None
    layout = sections.layout(dp=wishes.get("data_parallel_size"), transformer_engine=transformer_engine)
    kept = _kept(wishes, sections, keep=keep, layout=layout)
    return resolve_overlap({**wishes, **kept}, layout)


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
        value = getattr(section, name)
        if name in stated and stated[name] != value:
            raise OverlapConflictError(
                f"{path}.{name}: contradicts {origins[name]} ({value} against {stated[name]}), because both are "
                "wishes and only one can stand. Make them equal, or leave one of them unset."
            )
        origins[name] = f"{path}.{name}"
        stated[name] = kept[name] = value
    return kept


def _write(decision: Decision | None, section: object, name: str, *, path: str) -> Change | None:
    if decision is None or decision.value is None or getattr(section, name) == decision.value:
        return None
    old = getattr(section, name)
    setattr(section, name, decision.value)
    return Change(field=f"{path}.{name}", old=old, new=decision.value, why=decision.why, rule=decision.rule)


def _not_granted(
    wishes: Mapping[str, Any], decisions: Mapping[str, Decision], sections: Sections
) -> Iterator[Change]:
    """Yield a warning for each wish that the sections do not hold now that all is written."""
    for name, decision in decisions.items():
        if name not in wishes:
            continue
        wish = wishes[name]
        held = [getattr(section, name) for _, section, field in sections.targets() if field == name]
        if held == [wish] * len(held) and (held or wish is False):
            continue
        nowhere = f"has nowhere to go, because no section has a field {name}"
        yield Change(
            field=f"comm_overlap.{name}",
            old=wish,
            new=decision.value if decision.refused else None,
            why=decision.why if decision.refused else nowhere,
            rule=decision.rule if decision.refused else "O20",
            severity="warning",
        )
