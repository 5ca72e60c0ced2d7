"""A run by its model, GPUs, sequence length and tokens, and the best parallel layouts for it.

>>> from mb_plan import best_layouts, describe_run, model_of_sizes
>>> llama = model_of_sizes(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128_256)
>>> run = describe_run(llama, gpus="64xh100", seq_length=8192, tokens="15T", precision="fp8")
>>> best = best_layouts(run)[0]
>>> print(f"{best.plan.parameters:,} parameters, {best.prediction.days:.0f} days, fits: {best.fits}")
8,030,261,248 parameters, 216 days, fits: True
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from typing import Any, Literal

from mb_plan.errors import ModelFileError, PlanError
from mb_plan.memory.pipeline_schedule import batch_sizes
from mb_plan.memory.resource_plan import ResourcePlan, make_plan
from mb_plan.shape.fields import read_field
from mb_plan.shape.model_shape import read_shape
from mb_plan.shape.sources import RunSource, embedding_rows
from mb_plan.sweep.fitting import fitting_changes
from mb_plan.sweep.layouts import layout_axes
from mb_plan.sweep.points import SweptPoint, best_points
from mb_plan.time.gpus import GPU_SPEEDS
from mb_plan.time.prediction import try_predict
from mb_schema.batch_stages import UNITS
from mb_schema.gpu_names import find_short_name

Precision = Literal["bf16", "fp8", "fp4"]
SEQ_LENGTH = 4096
"""Tokens of a sequence where nothing sets them."""
TOKENS_PER_STEP = 2**22
"""Tokens of a step where no batch size is given: about those of Llama 3.1's first steps."""
MICRO_BATCH = "micro_batch_size"
TENSOR = "tensor_model_parallel_size"
PARALLEL_SIZES = (
    TENSOR,
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
_SPLIT = (
    "sequence_parallel",
    "pipeline_model_parallel_layout",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "microbatch_group_size_per_vp_stage",
)
"""Fields of the model that belong to its layout."""
_CURRENT: Mapping[str, Mapping[str, Any]] = {
    "model": {
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bias_activation_fusion": True,
        "moe_token_dispatcher_type": "alltoall",
        "bf16": True,
    },
    "train": {},
    "optimizer": {"bf16": True, "use_distributed_optimizer": True},
    "ddp": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
}
"""Settings of current recipes, where a model has none."""
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"fp8": None, "fp4": None},
    "fp8": {"fp8": "hybrid", "fp8_param": True, "fp4": None},
    "fp4": {"fp4": "e2m1", "fp4_param": True, "fp8": None},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """What a run is to train, and on what, before its layout is chosen."""

    settings: Mapping[str, Any]
    """Sections with Megatron's fields, at least "model", without what the layout sets."""
    gpu: str
    """Short name."""
    gpus: int
    seq_length: int
    global_batch_size: int | None
    """Sequences of a step; None: one microbatch of each replica, or those of a schedule."""
    tokens: float | None
    """Tokens of the whole run; None: those of the settings."""
    layout: Mapping[str, Any]
    """Parallel sizes and `micro_batch_size` that are kept."""
    chosen: bool
    """The other ones are chosen; otherwise they are those of Megatron."""
    assumed_batch: bool = False
    """The number of sequences is that of about 4 million tokens."""
    notes: tuple[str, ...] = ()
    """What a plan of the run does not take into account."""

    @property
    def model(self) -> Mapping[str, Any]:
        """Megatron's fields of the model, with the rows of its embedding and the length of a sequence."""
        return self._model(self.settings["model"])

    def _model(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        rows = embedding_rows({**self.settings, "model": fields})
        return {**fields, "vocab_size": rows, "seq_length": self.seq_length}

    def sections(self, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sections of the run in a layout: fields of the model, and `micro_batch_size`."""
        split = dict(layout)
        micro_batch = split.pop(MICRO_BATCH, 1)
        model = self._model({**self.settings["model"], **split})
        if self.chosen:
            model.setdefault("sequence_parallel", (read_field(model, TENSOR) or 1) > 1)
        train = {**(self.settings.get("train") or {}), "micro_batch_size": micro_batch}
        train["global_batch_size"] = self._batch(model, train)
        train["train_iters"] = self._steps(train)
        return {**self.settings, "model": model, "train": train, "dataset": {"seq_length": self.seq_length}}

    def _batch(self, model: Mapping[str, Any], train: Mapping[str, Any]) -> int | None:
        if self.global_batch_size is not None or train.get("step_batch_size_schedule"):
            return self.global_batch_size
        replicas: int = self.gpus // read_shape(model).model_ranks
        micro_batch: int = train["micro_batch_size"]
        return replicas * micro_batch

    def _steps(self, train: Mapping[str, Any]) -> int | None:
        """Return the number of steps, of which each has the last batch size."""
        batch = next(reversed(batch_sizes(train)), None)
        if batch is None:
            return None
        if self.tokens is not None:
            return ceil(self.tokens / (batch * self.seq_length))
        samples: int | None = train.get("train_samples")
        steps: int | None = train.get("train_iters")
        return samples // batch if samples else steps


def describe_run(
    source: Mapping[str, Any] | RunSource,
    *,
    gpus: str,
    seq_length: int | None = None,
    tokens: str | float | None = None,
    global_batch_size: int | None = None,
    precision: Precision | None = None,
    search: bool = False,
) -> RunDescription:
    """Return a run from a model, its GPUs and its tokens, or from what a file or a command line has of it.

    Args:
        source: Megatron's fields of the model (`read_model`), or a source (`read_command_line`). One that has a
            micro-batch size is a run: it is planned as it is, with Megatron's defaults. A model has the settings of
            current recipes: BF16, fused kernels, the distributed optimizer, gradients in float32.
        gpus: Number and name, such as "64xh100".
        seq_length: Tokens of a sequence; None: those of the source, or 4096.
        tokens: Tokens of the run, such as 1e12 or "15T"; None: those of the source.
        global_batch_size: Sequences of a step; None: those of the source, or about 4 million tokens, and at least one
            sequence for each GPU.
        precision: Format of most products; None: that of the source.
        search: Choose the layout of a run as well, instead of the one that it has.

    Raises:
        ModelFileError: A text has another form, or the GPU is not known.
        PlanError: A size of the model is missing or not supported, the precision of the source is not resolved, or
            the GPU does not compute in it.
    """
    if not isinstance(source, RunSource):
        source = RunSource(sections={"model": source})
    number, gpu = read_gpus(gpus)
    lengths = (
        read_field(source.sections.get("dataset"), "seq_length"),
        read_field(source.model, "seq_length"),
    )
    length = seq_length or next((length for length in lengths if length), SEQ_LENGTH)
    train = source.sections.get("train")
    batch = global_batch_size or read_field(train, "global_batch_size")
    assumed = batch is None and not source.has_layout
    if assumed:
        batch = max(number, round(TOKENS_PER_STEP / length / number) * number)
    settings = _settings(_without_layout(source) if search else source, precision, batch=global_batch_size)
    if precision is not None and GPU_SPEEDS[gpu].peak(precision) is None:
        raise PlanError(f"--precision: {gpu} does not compute in {precision}. Choose another one.")
    run = RunDescription(
        settings=settings,
        gpu=gpu,
        gpus=number,
        seq_length=length,
        global_batch_size=batch,
        tokens=read_amount(tokens) if isinstance(tokens, str) else tokens,
        layout={} if search else _layout(source),
        chosen=search or not source.has_layout,
        assumed_batch=assumed,
        notes=source.notes,
    )
    read_shape(run.model)
    return run


def _without_layout(source: RunSource) -> RunSource:
    """Return a source without its parallel sizes and what belongs to them."""
    fields = source.model
    kept = {name: value for name, value in fields.items() if name not in {*PARALLEL_SIZES, *_SPLIT}}
    transformer = kept.get("transformer")
    if isinstance(transformer, Mapping):
        kept["transformer"] = {
            name: value for name, value in transformer.items() if name not in {*PARALLEL_SIZES, *_SPLIT}
        }
    return replace(source, sections={**source.sections, "model": kept})


def _settings(source: RunSource, precision: Precision | None, *, batch: int | None) -> dict[str, Any]:
    """Return the sections of a source in a precision, without the growth of a batch that is given."""
    sections = source.sections
    assumed = {} if source.has_layout else _CURRENT
    settings = {
        **sections,
        **{name: {**assumed.get(name, {}), **(sections.get(name) or {})} for name in _CURRENT},
    }
    recipe = sections.get("mixed_precision")
    if recipe is not None and precision is None and source.has_layout:
        raise PlanError(
            f"mixed_precision: is {recipe!r}, a recipe that only the trainer resolves. Pass --precision, or use "
            "`mb plan` for this file."
        )
    if precision is not None:
        for name in ("model", "optimizer"):
            settings[name] |= {"bf16": True, "fp16": False}
        settings["model"] |= _FORMATS[precision]
        if recipe is not None:
            settings["ddp"] = {"grad_reduce_in_fp32": True, **settings["ddp"]}
    if batch is not None:
        settings["train"] |= {"rampup_batch_size": None, "step_batch_size_schedule": None}
    return settings


def _layout(source: RunSource) -> dict[str, Any]:
    sizes = {name: read_field(source.model, name) for name in PARALLEL_SIZES}
    sizes[MICRO_BATCH] = read_field(source.sections.get("train"), MICRO_BATCH)
    return {name: size for name, size in sizes.items() if size is not None}


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
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,3})?)([KMBT]?)", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise ModelFileError(f"--tokens: {text!r} is not a number of tokens. Write 15T, 300B or 1.4e12.")
    return float(match[1]) * UNITS[match[2].upper()]


def plan_layout(run: RunDescription, layout: Mapping[str, Any]) -> SweptPoint:
    """Plan and predict a run in one layout.

    Raises:
        PlanError: The layout does not divide the model.
    """
    sections = run.sections(layout)
    plan = make_plan(sections, world_size=run.gpus)
    _reject_uneven(run, plan)
    prediction, unpredicted = try_predict(sections, plan, gpu=run.gpu)
    return SweptPoint(
        values={_path(name): value for name, value in layout.items()},
        plan=plan,
        unplanned="",
        prediction=prediction,
        unpredicted=unpredicted,
        gpu=run.gpu,
    )


def _path(name: str) -> str:
    """Return the path of a field of a layout, as configurations have it."""
    return f"train.{name}" if name == MICRO_BATCH else f"model.{name}"


def _reject_uneven(run: RunDescription, plan: ResourcePlan) -> None:
    """Reject a layout in which ranks or microbatches would not have equal shares.

    Raises:
        PlanError: It is such a layout.
    """
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
    if shape.vp > 1:
        group = read_field(run.model, "microbatch_group_size_per_vp_stage") or shape.pp
        rest = plan.num_microbatches % group
        if not shape.pp <= group <= plan.num_microbatches or 0 < rest < shape.pp:
            raise PlanError(
                f"--vp: {plan.num_microbatches} microbatches in groups of {group} are not possible on pp={shape.pp} "
                "stages. Each group needs one for each stage. Change the batch, or leave --vp out."
            )


def best_layouts(
    run: RunDescription, *, fixed: Mapping[str, Any] | None = None, number: int = 5
) -> list[SweptPoint]:
    """Return the layouts that are possible, those that fit and are fastest first, at most `number`.

    Args:
        run: Model, GPUs and batch.
        fixed: Parallel sizes and `micro_batch_size` that are kept, in addition to those of the run or in place of them.
        number: Largest number of layouts.

    Raises:
        PlanError: None is possible; the message has the reason of the last one.
    """
    kept = {**run.layout, **(fixed or {})}
    if not run.chosen:
        return [plan_layout(run, kept)]
    if read_field(run.model, "num_moe_experts"):
        kept.setdefault("expert_tensor_parallel_size", 1)
    points, reason = [], ""
    for layout in layouts(run, kept):
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
        run.model,
        world_size=run.gpus,
        node_gpus=min(8, speeds.nvlink_gpus),
        is_kept=lambda path: path.rpartition(".")[2] in {*fixed, "sequence_parallel"},
    )
    names = [axis.path.rpartition(".")[2] for axis in axes]
    shape = read_shape(run.model)
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
