"""Time of a step as a sum: work at the peak speeds of the machine, times the coefficients of the fit.

Each term is the time that its work takes at the speed of the data sheet; its coefficient is how many times longer it
takes in a run. Terms of communication are times without overlap, so that their coefficients are the exposed part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from mb_plan.shape.fields import Graphs
from mb_plan.shape.model_shape import ModelShape
from mb_plan.time.gpus import GpuSpeed
from mb_plan.time.work import BYTES, Batch, Work, model_work

Dispatcher = Literal["allgather", "alltoall", "deepep", "hybridep"]
"""How tokens are sent to experts."""

TERMS: Mapping[str, str] = {
    "bf16": "products in BF16, the output layer among them",
    "fp8": "products in FP8 and MXFP8",
    "fp4": "products in NVFP4",
    "experts": "grouped products of experts",
    "attention": "attention without projections: its products and exponentials",
    "memory": "norms, activations, conversions, the update of weights: bytes at the speed of the memory",
    "scan": "Mamba's convolution and scan: bytes at the speed of the memory",
    "launches": "kernels that the host launches one by one",
    "replays": "kernels in CUDA graphs",
    "tensor": "tensor and context parallelism",
    "routing": "tokens sent to experts",
    "waits": "waits of the host for the GPU, to know how many tokens each expert has",
    "gradients": "gradients and weights of replicas, and pipeline stages",
}
"""Name of each term to what it contains."""
PRODUCTS = ("bf16", "fp8", "fp4", "experts")
"""Terms whose speed relative to the data sheet differs between GPUs: their coefficients have a factor for each GPU."""
MICROSECOND = 1e-6
MILLISECOND = 1e-3
RECOMPUTED = (
    "bf16",
    "fp8",
    "fp4",
    "experts",
    "attention",
    "memory",
    "scan",
    "launches",
    "replays",
    "tensor",
    "routing",
)
"""Terms of a layer that full recomputation extends by a forward pass, a third of the work."""
OPTIMIZER_BYTES = 28
"""Bytes that an update moves per weight of a rank: gradient, master weight, two moments read and written, weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """What determines the time of a step besides the sizes of the model."""

    gpu: GpuSpeed
    precision: Literal["bf16", "fp8", "fp4"]
    seq_length: int
    micro_batch_size: int
    microbatches: int
    """Per step and replica."""
    replicas: int
    """Data-parallel size."""
    graphs: Graphs = ()
    dispatcher: Dispatcher = "alltoall"
    bf16_layers: tuple[int, int] = (0, 0)
    """Layers at the start and at the end that are computed in BF16."""
    fused_experts: bool = False
    """Experts are computed by Transformer Engine's fused kernels (`use_transformer_engine_op_fuser`)."""
    fsdp: bool = False
    """Weights are sharded over the replicas and gathered for each microbatch."""
    frozen: bool = False
    """Only adapters are trained."""
    sharded_optimizer: bool = True
    """Each replica updates its share of the weights; otherwise each updates all of them."""
    recomputed: tuple[str, ...] = ()
    """Modules that are computed a second time in the backward pass."""
    recomputed_layers: float = 0.0
    """Fraction of the layers that are computed a second time as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerms:
    """Terms of a step in seconds, without coefficients; "launches" and "replays" are microseconds per kernel."""

    microbatch: Mapping[str, float]
    """Of one microbatch on one GPU."""
    step: Mapping[str, float]
    """Once in a step."""
    microbatches: int
    waiting: float
    """Passes of a microbatch in which a pipeline stage waits: (stages - 1) / virtual stages."""

    @property
    def total(self) -> dict[str, float]:
        """Terms of the whole step, with those of waiting stages."""
        passes = self.microbatches + self.waiting
        return {name: passes * self.microbatch.get(name, 0.0) + self.step.get(name, 0.0) for name in TERMS}


def step_terms(shape: ModelShape, settings: StepSettings) -> StepTerms:
    """Return the terms of a step.

    Stages of a pipeline are taken to be of equal duration; the fraction of a step in which they wait is that of
    `mb_plan.memory.pipeline_schedule`.
    """
    gpu = settings.gpu
    tokens = settings.micro_batch_size * settings.seq_length / shape.cp
    batch = Batch(
        tokens=tokens,
        context=settings.seq_length / 2,
        peak=gpu.peak(settings.precision) or gpu.bf16,
        memory=gpu.memory,
        quantised=settings.precision != "bf16",
        fused=settings.fused_experts,
        passes=2.0 if settings.frozen else 3.0,
        dispatcher=settings.dispatcher,
        domain=gpu.nvlink_gpus,
        captured=() if settings.graphs == "step" else settings.graphs,
        recomputed=settings.recomputed,
    )
    bf16 = replace(batch, peak=gpu.bf16, quantised=False)
    layers, head = model_work(shape, batch, bf16, settings.bf16_layers)
    terms, work = _work_terms(layers, shape, settings), replace(layers)
    for name in RECOMPUTED:
        terms[name] *= 1 + settings.recomputed_layers / 3
    work.add(head)
    terms = {name: value + terms[name] for name, value in _work_terms(head, shape, settings).items()}
    world = settings.replicas * shape.tp * shape.pp * shape.cp
    stages = 2 * shape.vp * BYTES * tokens * shape.hidden / shape.tp if shape.pp > 1 else 0.0
    terms["gradients"] = stages / _speed(gpu, world)
    return StepTerms(
        microbatch=terms,
        step={
            "gradients": _replica_time(work, shape, settings, world),
            "memory": _optimizer_time(work, shape, settings),
        },
        microbatches=settings.microbatches,
        waiting=(shape.pp - 1) / shape.vp,
    )


def _work_terms(work: Work, shape: ModelShape, settings: StepSettings) -> dict[str, float]:
    """Return the terms of work on a microbatch, without those of stages and replicas."""
    gpu = settings.gpu
    replayed = work.kernels if settings.graphs == "step" else work.captured
    terms = {
        **dict.fromkeys(TERMS, 0.0),
        "bf16": work.dense + work.head / gpu.bf16,
        "experts": work.grouped,
        "attention": (work.attention + work.chunks) / gpu.bf16 + work.exponentials / gpu.exponentials,
        "memory": work.moved / gpu.memory,
        "scan": work.scanned / gpu.memory,
        "launches": (work.kernels - replayed) * MICROSECOND,
        "replays": replayed * MICROSECOND,
        "tensor": work.tensor / _speed(gpu, shape.tp) + work.context / _speed(gpu, shape.tp * shape.cp),
        "routing": max(work.routed / gpu.nvlink, work.routed_away / gpu.network),
        "waits": 0.0 if settings.graphs == "step" else work.waits * MILLISECOND,
    }
    if settings.precision != "bf16":
        terms[settings.precision] = work.quantised
    return terms


def _speed(gpu: GpuSpeed, ranks: int) -> float:
    """Return the bytes/s within a group of neighbouring ranks."""
    return gpu.nvlink if ranks <= gpu.nvlink_gpus else gpu.network


def _replica_time(work: Work, shape: ModelShape, settings: StepSettings, world: int) -> float:
    """Return the time to reduce gradients and to gather weights."""
    if settings.frozen:
        return 0.0
    ranks = settings.replicas * shape.cp
    expert_ranks = max(1.0, ranks * shape.tp / shape.ep)
    times = 2 * settings.microbatches + 1 if settings.fsdp else 2  # gradients and weights, of BF16 each
    speed = _speed(settings.gpu, world)
    dense = work.weights * (ranks - 1) / ranks
    experts = work.expert_weights * (expert_ranks - 1) / expert_ranks
    return times * BYTES * (dense + experts) / speed


def _optimizer_time(work: Work, shape: ModelShape, settings: StepSettings) -> float:
    if settings.frozen:
        return 0.0
    ranks = settings.replicas * shape.cp
    expert_ranks = max(1.0, ranks * shape.tp / shape.ep)
    if not settings.sharded_optimizer:
        ranks, expert_ranks = 1, 1.0
    weights = work.weights / ranks + work.expert_weights / expert_ranks
    return OPTIMIZER_BYTES * weights / settings.gpu.memory


def step_seconds(terms: StepTerms, coefficients: Mapping[str, float]) -> float:
    """Return the time of a step."""
    return sum(coefficients[name] * value for name, value in terms.total.items())


@cache
def fitted() -> Mapping[str, Any]:
    """Return the result of the fit: coefficients and errors."""
    text = files("mb_plan.time").joinpath("fit.json").read_text(encoding="utf-8")
    fit: dict[str, Any] = json.loads(text)
    return fit


def coefficients_of(gpu: str) -> dict[str, float]:
    """Return the coefficient of each term on a GPU; one that no published run is on has the factor 1."""
    factor = fitted()["gpu_factors"].get(gpu, 1.0)
    return {
        name: value * (factor if name in PRODUCTS else 1.0)
        for name, value in fitted()["coefficients"].items()
    }
