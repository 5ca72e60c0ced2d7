"""Resource estimate of a resolved configuration: the plan of mb-config and the FLOPs of mb-metrics. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mb_config import ResourcePlan, make_plan
from mb_data import TokenizerError
from mb_metrics import FlopsPerToken, UnknownFlopsError, model_flops_per_token
from mb_models.vocab import padded_vocab_size
from mb_trainer.config import ConfigContainer
from mb_trainer.preflight import need_tokenizer_entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Resource plan, with the floating-point operations per token."""

    plan: ResourcePlan
    flops: FlopsPerToken | None
    """FLOPs of forward and backward; None: not counted, and a note states the reason."""
    notes: tuple[str, ...]
    """Omissions and assumptions of the estimate."""

    @property
    def flops_per_step(self) -> float | None:
        """Floating-point operations of a step, over all processes."""
        if self.flops is None or self.plan.tokens_per_step is None:
            return None
        return self.flops.total * self.plan.tokens_per_step

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict for machine-readable output."""
        plan = self.plan.to_dict()
        flops = None if self.flops is None else {"total": self.flops.total, **self.flops.parts}
        first = {name: plan.pop(name) for name in ("parameters", "bytes_per_rank")}
        return {**first, "flops_per_token": flops, "flops_per_step": self.flops_per_step, **plan}


def look_ahead(config: ConfigContainer, *, world_size: int) -> Outlook:
    """Plan a configuration, resolved as far as possible.

    Raises:
        PlanError: the model's sizes cannot be counted.
    """
    rows = embedding_rows(config)
    plan = make_plan(config.sections(), world_size=world_size, vocab_size=rows)
    length = getattr(config.dataset, "seq_length", None) or config.model.seq_length
    try:
        flops = model_flops_per_token(
            flat(config.model),
            seq_length=length,
            vocab_size=rows,
            decoder_seq_length=getattr(config.model, "decoder_seq_length", None),  # only a T5 has this field
        )
    except UnknownFlopsError as error:
        return Outlook(plan=plan, flops=None, notes=(*plan.notes, str(error)))
    return Outlook(plan=plan, flops=flops, notes=plan.notes)


def flat(model: Any) -> Mapping[str, object]:
    """Return the model's fields by name, including those in its mapping `transformer`."""
    own = {field.name: getattr(model, field.name) for field in fields(model)}
    return {**own, **(own.pop("transformer", None) or {})}


def embedding_rows(config: ConfigContainer) -> int | None:
    """Return the padded rows of the embedding, from the model or the tokenizer; None if neither is known."""
    model = config.model
    if model.vocab_size is not None:
        return int(model.vocab_size)
    size = tokenizer_entries(config)
    if size is None or min(size, model.tensor_model_parallel_size, model.make_vocab_size_divisible_by) < 1:
        return None
    return padded_vocab_size(
        size,
        divisible_by=model.make_vocab_size_divisible_by,
        tensor_parallel_size=model.tensor_model_parallel_size,
    )


def tokenizer_entries(config: ConfigContainer) -> int | None:
    """Return the vocabulary size of the tokenizer or of a text corpus; None if it cannot be read here."""
    try:
        return need_tokenizer_entries(config)
    except (TokenizerError, OSError):
        return None
