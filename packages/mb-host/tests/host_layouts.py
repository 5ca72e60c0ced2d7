"""Parallel layout of a small model, and the result of a run. Does not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism and gradient reduction; `experts` and the hybrid `pattern` belong to the model.

    `batched_sends=None` is the value that the pipeline schedule requires.
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
    """Losses of all steps, on ranks of the last pipeline stage, and the median step time."""

    losses: list[float]
    step_ms: float
