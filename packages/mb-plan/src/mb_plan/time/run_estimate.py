"""Resources of a run: its plan, and the floating-point operations of a token if a function counts them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

from mb_plan.memory.resource_plan import ResourcePlan, make_plan
from mb_plan.shape.fields import read_field


class FlopsLike(Protocol):
    """Floating-point operations per token, forward and backward."""

    @property
    def total(self) -> float:
        """All operations."""

    @property
    def parts(self) -> Mapping[str, float]:
        """Operations by part of the model."""


class CountFlops(Protocol):
    """Function that counts the operations per token of a model."""

    def __call__(
        self, model: Mapping[str, object], /, *, seq_length: int, vocab_size: int | None
    ) -> FlopsLike:
        """Return the operations. `model` has Megatron's field names.

        Raises:
            ValueError: The operations of this model cannot be counted; the message has the reason.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """Resource plan, with the floating-point operations per token."""

    plan: ResourcePlan
    """Parameters, memory, microbatches and pipeline bubble."""

    flops: FlopsLike | None
    """Operations of forward and backward; None: not counted, and a note states the reason."""

    notes: tuple[str, ...]
    """Omissions and assumptions."""

    @property
    def flops_per_step(self) -> float | None:
        """Floating-point operations of a step, over all processes."""
        if self.flops is None or self.plan.tokens_per_step is None:
            return None
        return self.flops.total * self.plan.tokens_per_step

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON."""
        plan = self.plan.to_dict()
        flops = None if self.flops is None else {"total": self.flops.total, **self.flops.parts}
        first = {name: plan.pop(name) for name in ("parameters", "bytes_per_rank")}
        return {**first, "flops_per_token": flops, "flops_per_step": self.flops_per_step, **plan}


def estimate_run(
    sections: Mapping[str, object],
    *,
    world_size: int,
    vocab_size: int | None = None,
    count_flops: CountFlops | None = None,
) -> RunEstimate:
    """Estimate a run whose sections are resolved as far as possible.

    Args:
        sections: As for `make_plan`.
        world_size: Number of processes.
        vocab_size: Rows of the embedding, if the model does not set them.
        count_flops: Function that counts operations.

    Raises:
        PlanError: The model's sizes cannot be counted.
    """
    plan = make_plan(sections, world_size=world_size, vocab_size=vocab_size)
    if count_flops is None:
        note = "floating-point operations are not counted, because no function for them is installed"
        return RunEstimate(plan=plan, flops=None, notes=(*plan.notes, note))
    length = read_field(sections.get("dataset"), "seq_length") or read_field(sections["model"], "seq_length")
    try:
        counted = count_flops(_model_fields(sections["model"]), seq_length=length, vocab_size=vocab_size)
    except ValueError as reason:
        return RunEstimate(plan=plan, flops=None, notes=(*plan.notes, str(reason)))
    return RunEstimate(plan=plan, flops=counted, notes=plan.notes)


def _model_fields(model: Any) -> Mapping[str, object]:
    """Return the model's fields by name, including those in its mapping `transformer`."""
    own = (
        {item.name: getattr(model, item.name) for item in fields(model)} if is_dataclass(model) else {**model}
    )
    return {**own, **(own.pop("transformer", None) or {})}
