"""How ranks share the work of one small GPT, and what a run brings back: torch-free, for both sides."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism and how gradients are reduced; `experts` and the hybrid `pattern` are the model's.

    `batched_sends` None is what the pipeline schedule is right with.
    """

    tp: int = 1
    pp: int = 1
    vp: int | None = None
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    overlap: bool = False
    batched_sends: bool | None = None
    experts: int | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The losses of the steps that ran, on ranks of the last pipeline stage, and the median time of a step."""

    losses: list[float]
    step_ms: float
