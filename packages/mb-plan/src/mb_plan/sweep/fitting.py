"""Changes of a run with which it fits its GPU, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from mb_plan.errors import PlanError
from mb_plan.memory.resource_plan import ResourcePlan, make_plan
from mb_plan.shape.fields import read_field
from mb_plan.sweep.grid import Axis, at_point
from mb_plan.sweep.layouts import LONGEST_CONTEXT, SHORTEST_PART
from mb_plan.sweep.points import SweptPoint
from mb_plan.time.gpus import GPU_SPEEDS
from mb_plan.time.prediction import try_predict

Change = Mapping[str, Any]
"""Path of a field to its value."""
MOST_CHANGES = 3
OFFLOAD: Change = {
    "optimizer.use_precision_aware_optimizer": True,
    "optimizer.optimizer_cpu_offload": True,
    "optimizer.optimizer_offload_fraction": 1.0,
}
"""Optimizer state on the host. The time of its step there is not predicted, so that it is the last to be proposed."""


def fitting_changes(
    sections: Mapping[str, object],
    plan: ResourcePlan,
    *,
    gpu: str,
    vocab_size: int | None = None,
) -> Iterator[SweptPoint]:
    """Yield changes with which a run fits a GPU: the fewest first, of equally many those with the fastest step.

    What is changed, one value of each: recomputation of modules or of all layers, the micro-batch size, the parallel
    sizes, primary weights in FP8, and the distributed optimizer; then also the place of the optimizer state. The rules
    of a configuration are not applied: the caller checks what it proposes.

    Args:
        sections: Sections of the run, as for `make_plan`; they are not modified.
        plan: Their plan.
        gpu: Short name of a GPU whose memory and speed are known.
        vocab_size: As for `make_plan`.
    """
    choices = list(_choices(sections, plan, gpu=gpu))
    for offload in ((), (OFFLOAD,)):
        for number in range(1 - len(offload), MOST_CHANGES + 1 - len(offload)):
            fitting = [
                point
                for chosen in combinations(choices, number)
                for changes in product(*chosen)
                if (point := _point(sections, plan, [*changes, *offload], gpu=gpu, vocab_size=vocab_size))
                is not None
            ]
            yield from sorted(fitting, key=_step_seconds)


def _step_seconds(point: SweptPoint) -> float:
    return float("inf") if point.prediction is None else point.prediction.step_seconds


def _choices(sections: Mapping[str, object], plan: ResourcePlan, *, gpu: str) -> Iterator[Sequence[Change]]:
    """Yield the values that each kind of change may take."""
    model, train, shape = sections.get("model"), sections.get("train"), plan.shape
    yield list(_recomputation(model, has_experts=shape.experts is not None))
    if (read_field(train, "micro_batch_size") or 1) > 1:
        yield [{"train.micro_batch_size": 1}]
    heads, length = read_field(model, "num_attention_heads") or 1, read_field(model, "seq_length") or 0
    node = min(8, GPU_SPEEDS[gpu].nvlink_gpus)
    yield [
        {"model.tensor_model_parallel_size": tp, "model.sequence_parallel": True}
        for tp in (2 * shape.tp, 4 * shape.tp)
        if tp <= node and heads % tp == 0
    ]
    interleaving = {} if shape.vp == 1 else {"model.virtual_pipeline_model_parallel_size": None}
    yield [
        {"model.pipeline_model_parallel_size": pp, **interleaving}
        for pp in (2 * shape.pp, 4 * shape.pp, 8 * shape.pp)
        if shape.num_layers % pp == 0
    ]
    yield [
        {"model.context_parallel_size": cp}
        for cp in (2 * shape.cp, 4 * shape.cp)
        if cp <= LONGEST_CONTEXT and length % (2 * cp) == 0 and length // cp >= SHORTEST_PART
    ]
    if shape.experts is not None:
        experts = read_field(model, "num_moe_experts") or 1
        yield [
            {"model.expert_model_parallel_size": ep}
            for ep in (2 * shape.ep, 4 * shape.ep)
            if experts % ep == 0
        ]
    if read_field(model, "fp8") and not read_field(model, "fp8_param", False):
        yield [{"model.fp8_param": True, "ddp.fp8_param_gather": True}]
    if not read_field(sections.get("ddp"), "use_distributed_optimizer", False):
        yield [{"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True}]


def _recomputation(model: object, *, has_experts: bool) -> Iterator[Change]:
    """Yield what may be recomputed, beyond what the model recomputes."""
    granularity = read_field(model, "recompute_granularity")
    if granularity is None:
        small = ["layernorm", "moe_act"] if has_experts else ["layernorm"]
        for modules in (
            small,
            ["mlp"],
            ["layernorm", "mlp"],
            *([["moe"], ["layernorm", "moe"]] if has_experts else []),
        ):
            yield {"model.recompute_granularity": "selective", "model.recompute_modules": modules}
    if granularity != "full":
        yield {
            "model.recompute_granularity": "full",
            "model.recompute_method": "uniform",
            "model.recompute_num_layers": 1,
        }


def _point(
    sections: Mapping[str, object],
    plan: ResourcePlan,
    changes: Sequence[Change],
    *,
    gpu: str,
    vocab_size: int | None,
) -> SweptPoint | None:
    """Return the changed run; None if it does not fit, or its sizes do not divide."""
    values = {path: value for change in changes for path, value in change.items()}
    axes = [Axis(path=path, values=(value,)) for path, value in values.items()]
    changed = at_point(sections, axes, (0,) * len(axes))
    try:
        planned = make_plan(changed, world_size=plan.world_size, vocab_size=vocab_size)
    except PlanError:
        return None
    uneven = planned.num_microbatches is None or plan.world_size % planned.shape.expert_ranks
    if uneven or not planned.fits(gpu):
        return None
    return SweptPoint(
        values=values,
        plan=planned,
        unplanned="",
        prediction=try_predict(changed, planned, gpu=gpu)[0],
        gpu=gpu,
    )
