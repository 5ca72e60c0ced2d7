"""A run by its model, GPUs, sequence length and tokens, and the best parallel layouts for it.

>>> from mb_plan import best_layouts, describe_run, model_of_sizes
>>> llama = model_of_sizes(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128_256)
>>> run = describe_run(llama, gpus="64xh100", seq_length=8192, tokens="15T", precision="fp8")
>>> best = best_layouts(run)[0]
>>> print(f"{best.plan.parameters:,} parameters, {best.prediction.days:.0f} days, fits: {best.fits}")
8,030,261,248 parameters, 209 days, fits: True
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import Any, Literal

from mb_plan.errors import ModelFileError, PlanError
from mb_plan.memory.resource_plan import ResourcePlan, make_plan
from mb_plan.shape.fields import read_field
from mb_plan.shape.model_shape import read_shape
from mb_plan.sweep.fitting import fitting_changes
from mb_plan.sweep.layouts import layout_axes
from mb_plan.sweep.points import SweptPoint, best_points
from mb_plan.time.gpus import GPU_SPEEDS
from mb_plan.time.prediction import predict
from mb_schema.gpu_names import find_short_name

Precision = Literal["bf16", "fp8", "fp4"]
TOKENS_PER_STEP = 2**22
"""Tokens of a step where no batch size is given: about those of Llama 3.1's first steps."""
MICRO_BATCH = "micro_batch_size"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_FUSED = {
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bias_activation_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
}
"""Settings of current recipes, where a model file has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """What a run is to train, and on what, before its layout is chosen."""

    model: Mapping[str, Any]
    """Megatron's fields of the model."""
    gpu: str
    """Short name."""
    gpus: int
    seq_length: int
    global_batch_size: int
    """Sequences of a step."""
    tokens: float | None
    """Tokens of the whole run; None: not known."""
    precision: Precision = "bf16"

    def sections(self, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sections of the run in a layout: fields of the model, and `micro_batch_size`."""
        split = dict(layout)
        micro_batch = split.pop(MICRO_BATCH, 1)
        tp = (
            split.get("tensor_model_parallel_size", read_field(self.model, "tensor_model_parallel_size")) or 1
        )
        formats = {
            "fp8": {"fp8": "hybrid", "fp8_param": True},
            "fp4": {"fp4": "e2m1", "fp4_param": True},
        }.get(self.precision, {})
        model = {**_FUSED, "sequence_parallel": tp > 1, **self.model, **split}
        tokens_per_step = self.global_batch_size * self.seq_length
        return {
            "model": {**model, **formats, "bf16": True, "seq_length": self.seq_length},
            "train": {
                "global_batch_size": self.global_batch_size,
                "micro_batch_size": micro_batch,
                "train_iters": None if self.tokens is None else ceil(self.tokens / tokens_per_step),
            },
            "dataset": {"seq_length": self.seq_length},
            "optimizer": {"bf16": True, "use_distributed_optimizer": True},
            "ddp": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
        }


def describe_run(
    model: Mapping[str, Any],
    *,
    gpus: str,
    seq_length: int,
    tokens: str | float | None = None,
    global_batch_size: int | None = None,
    precision: Precision = "bf16",
) -> RunDescription:
    """Return a run from a model, its GPUs and its tokens.

    Args:
        model: Megatron's fields of the model (`read_model`).
        gpus: Number and name, such as "64xh100".
        seq_length: Tokens of a sequence.
        tokens: Tokens of the run, such as 1e12 or "15T".
        global_batch_size: Sequences of a step; None: about 4 million tokens, and at least one sequence for each GPU.
        precision: Format of most products.

    Raises:
        ModelFileError: A text has another form, or the GPU is not known.
        PlanError: A size of the model is missing or not supported.
    """
    number, gpu = read_gpus(gpus)
    read_shape({**model, "seq_length": seq_length})
    batch = max(number, round(TOKENS_PER_STEP / seq_length / number) * number)
    return RunDescription(
        model=model,
        gpu=gpu,
        gpus=number,
        seq_length=seq_length,
        global_batch_size=global_batch_size or batch,
        tokens=read_amount(tokens) if isinstance(tokens, str) else tokens,
        precision=precision,
    )


def read_gpus(text: str) -> tuple[int, str]:
    """Return number and short name of GPUs such as "64xh100".

    Raises:
        ModelFileError: The text has another form, or the speed of the GPU is not known.
    """
    number, _, name = text.lower().replace(" ", "").partition("x")
    gpu = find_short_name(name, GPU_SPEEDS)
    if not number.isdecimal() or int(number) < 1 or gpu is None:
        raise ModelFileError(
            f"--gpus: {text!r} is not a number and a known GPU. Write 64xh100; known are {', '.join(GPU_SPEEDS)}."
        )
    return int(number), gpu


def read_amount(text: str) -> float:
    """Return a number of tokens such as 15T, 1.4e12 or 300B.

    Raises:
        ModelFileError: The text has another form.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,3})?)([KMBT]?)", text.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        raise ModelFileError(f"--tokens: {text!r} is not a number of tokens. Write 15T, 300B or 1.4e12.")
    return float(found[1]) * _UNITS[found[2].upper()]


def plan_layout(run: RunDescription, layout: Mapping[str, Any]) -> SweptPoint:
    """Plan and predict a run in one layout.

    Raises:
        PlanError: The layout does not divide the model, or its time is not modelled.
    """
    sections = run.sections(layout)
    plan = make_plan(sections, world_size=run.gpus)
    _reject_uneven(run, plan)
    prediction = predict(sections, plan, gpu=run.gpu)
    return SweptPoint(
        values={_path(name): value for name, value in layout.items()},
        plan=plan,
        unplanned="",
        prediction=prediction,
        gpu=run.gpu,
    )


def _path(name: str) -> str:
    """Return the path of a field of a layout, as configurations have it."""
    return f"train.{name}" if name == MICRO_BATCH else f"model.{name}"


def _reject_uneven(run: RunDescription, plan: ResourcePlan) -> None:
    shape = plan.shape
    if plan.data_parallel_size is None:
        raise PlanError(
            f"--gpus: {run.gpus} GPUs are not a multiple of tp x pp x cp = {shape.model_ranks}. Change one of them."
        )
    if shape.experts is not None and run.gpus % shape.expert_ranks:
        raise PlanError(
            f"--gpus: {run.gpus} GPUs are not a multiple of etp x ep x pp = {shape.expert_ranks}. Change one of them."
        )
    if plan.num_microbatches is None:
        raise PlanError(
            f"--batch: {run.global_batch_size} sequences do not divide into equal microbatches for "
            f"{plan.data_parallel_size} replicas. Choose a multiple."
        )
    if shape.vp > 1 and plan.num_microbatches % shape.pp:
        raise PlanError(
            f"--vp: {plan.num_microbatches} microbatches are not a multiple of pp={shape.pp}, as interleaving needs. "
            "Change the batch, or leave --vp out."
        )


def best_layouts(
    run: RunDescription, *, fixed: Mapping[str, Any] | None = None, number: int = 5
) -> list[SweptPoint]:
    """Return the layouts that are possible, those that fit and are fastest first, at most `number`.

    Args:
        run: Model, GPUs and batch.
        fixed: Parallel sizes and `micro_batch_size` that are kept.
        number: Largest number of layouts.

    Raises:
        PlanError: None is possible; the message has the reason of the last one.
    """
    points, reason = [], ""
    for layout in layouts(run, fixed or {}):
        try:
            points.append(plan_layout(run, layout))
        except PlanError as error:
            reason = str(error)
    if not points:
        raise PlanError(f"no parallel layout of the model is possible on {run.gpus} GPUs. {reason}".strip())
    return best_points(points, number)


def fitting_change(run: RunDescription, point: SweptPoint) -> SweptPoint | None:
    """Return the cheapest change with which a run in a layout that does not fit fits; None: none was found."""
    if point.plan is None:
        return None
    sections = run.sections({path.rpartition(".")[2]: value for path, value in point.values.items()})
    return next(fitting_changes(sections, point.plan, gpu=run.gpu), None)


def layouts(run: RunDescription, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the layouts that can be worth a try and divide the GPUs, with the fixed sizes."""
    speeds = GPU_SPEEDS[run.gpu]
    axes = layout_axes(
        {**run.model, "seq_length": run.seq_length},
        world_size=run.gpus,
        node_gpus=min(8, speeds.nvlink_gpus),
        is_kept=lambda path: path.rpartition(".")[2] in {*fixed, "sequence_parallel"},
    )
    names = [axis.path.rpartition(".")[2] for axis in axes]
    shape = read_shape({**run.model, "seq_length": run.seq_length})
    for values in product(*(axis.values for axis in axes)):
        layout = {**dict(zip(names, values, strict=True)), **fixed}
        tp, pp, cp, ep = (
            layout.get(f"{name}_parallel_size") or 1
            for name in ("tensor_model", "pipeline_model", "context", "expert_model")
        )
        vp = layout.get("virtual_pipeline_model_parallel_size") or 1
        divides = run.gpus % (tp * pp * cp) == 0 and shape.num_layers % (pp * vp) == 0
        if divides and (vp == 1 or pp > 1) and run.gpus % (tp * pp * ep) == 0:
            yield layout
