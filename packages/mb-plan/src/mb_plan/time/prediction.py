"""Predicted step of a run: time, throughput, MFU, duration, and the likely range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mb_plan.errors import PlanError
from mb_plan.memory.activations import SELECTIVE_DEFAULT
from mb_plan.memory.parameter_storage import parameter_storage
from mb_plan.memory.resource_plan import ResourcePlan, make_plan
from mb_plan.shape.fields import read_field, read_graphs
from mb_plan.shape.model_shape import ModelShape
from mb_plan.time.gpus import GPU_SPEEDS
from mb_plan.time.step import (
    TERMS,
    Dispatcher,
    StepSettings,
    StepTerms,
    coefficients_of,
    fitted,
    step_terms,
)

SECONDS_PER_DAY = 86_400
PREDICTED_SPEED = "predicted_tokens_per_second_per_gpu"
"""Field of a run's first event."""
WAITING = "waiting"
"""Part of a step in which pipeline stages wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenRunErrors:
    """Errors of predicted published runs, each predicted without those of its model or GPU."""

    runs: int
    """Number of runs."""
    of: str
    """Which runs: "gb200 in fp8, with experts", or "all GPUs"."""
    left_out: Literal["model", "gpu"]
    """What the fit of a run did not contain."""
    median: float
    within_25_percent: float
    """Fraction of the runs."""
    never_fitted: int
    """Number of runs, on all GPUs, that no fit has contained."""
    never_fitted_median: float
    never_fitted_within_25_percent: float
    releases: tuple[str, str]
    """First and last release of Megatron-Bridge; a prediction is for their mean."""

    def to_dict(self) -> dict[str, Any]:
        """Return the errors as plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted speed of a run."""

    step_seconds: float
    tokens_per_second_per_gpu: float
    likely: tuple[float, float]
    """Range of the throughput per GPU that holds nine of ten published runs, predicted without their model, or, if the
    prediction is extrapolated, without their GPU."""
    error: UnseenRunErrors
    mfu: float | None
    """Model FLOPs per second relative to the peak in the precision of most products; None: FLOPs are not counted."""
    tflops_per_gpu: float | None
    """Model FLOPs, in units of 10^12 per second."""
    days: float | None
    """Of the whole run, without evaluations and checkpoints; None: its length is not known."""
    gpu_hours: float | None
    parts: Mapping[str, float]
    """Seconds of a step by part, those of `mb_plan.time.step.TERMS` and "waiting"."""
    extrapolated: str
    """What the published runs do not contain; empty if there are runs of such a model on this GPU in this precision."""
    notes: tuple[str, ...]
    """What is not modelled."""

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as plain data for JSON."""
        return {
            "step_seconds": self.step_seconds,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "likely_tokens_per_second_per_gpu": list(self.likely),
            "error": self.error.to_dict(),
            "mfu": self.mfu,
            "tflops_per_gpu": self.tflops_per_gpu,
            "days": self.days,
            "gpu_hours": self.gpu_hours,
            "parts": dict(self.parts),
            "extrapolated": self.extrapolated,
            "notes": list(self.notes),
        }


def predict(sections: Mapping[str, object], plan: ResourcePlan, *, gpu: str) -> Prediction:
    """Predict the step of a resolved run on a GPU.

    Args:
        sections: As for `make_plan`.
        plan: Their plan.
        gpu: Short name.

    Raises:
        PlanError: The time of this model, batch or GPU is not modelled; the message has the reason.
    """
    model = sections["model"]
    settings = _settings(sections, plan, gpu)
    terms = step_terms(plan.shape, settings)
    parts = _parts(terms, coefficients_of(gpu))
    seconds = sum(parts.values())
    tokens = plan.tokens_per_step or 0
    speed = tokens / seconds / plan.world_size
    group = (gpu, settings.precision, kind_of(plan.shape, frozen=settings.frozen))
    extrapolated = _extrapolated(*group)
    error, (low, high) = _published_error(*group)
    flops = plan.flops_per_step
    per_gpu = None if flops is None else flops / seconds / plan.world_size
    peak = settings.gpu.peak(settings.precision)
    steps = read_field(sections.get("train"), "train_iters")
    days = steps * seconds / SECONDS_PER_DAY if steps else None
    return Prediction(
        step_seconds=seconds,
        tokens_per_second_per_gpu=speed,
        likely=(low * speed, high * speed),
        error=error,
        mfu=None if per_gpu is None or peak is None else per_gpu / peak,
        tflops_per_gpu=None if per_gpu is None else per_gpu / 1e12,
        days=days,
        gpu_hours=None if days is None else 24 * days * plan.world_size,
        parts=parts,
        extrapolated=extrapolated,
        notes=tuple(_notes(model)),
    )


def try_predict(
    sections: Mapping[str, object], plan: ResourcePlan, *, gpu: str
) -> tuple[Prediction | None, str]:
    """Return what `predict` returns, or None and the reason why the time of a step is not predicted."""
    try:
        return predict(sections, plan, gpu=gpu), ""
    except PlanError as error:
        return None, str(error)


def predicted_speed(
    sections: Mapping[str, object], *, gpu: str | None, world_size: int, vocab_size: int | None = None
) -> dict[str, float]:
    """Return the predicted tokens per second and GPU of a resolved run, for its first event; empty if not predicted.

    Args:
        sections: As for `make_plan`, resolved.
        gpu: Short name; None: the run has no GPU, or an unknown one.
        world_size: Number of processes.
        vocab_size: Rows of the embedding.
    """
    if gpu is None:
        return {}
    try:
        plan = make_plan(sections, world_size=world_size, vocab_size=vocab_size)
        prediction = predict(sections, plan, gpu=gpu)
    except PlanError:  # `plan` reports the reason
        return {}
    return {PREDICTED_SPEED: round(prediction.tokens_per_second_per_gpu, 1)}


def _settings(sections: Mapping[str, object], plan: ResourcePlan, gpu: str) -> StepSettings:
    """Return what determines the time besides the sizes.

    Raises:
        PlanError: There is no table for the GPU, the batch does not divide, or the precision is not modelled.
    """
    model, speeds = sections["model"], GPU_SPEEDS.get(gpu)
    if speeds is None:
        raise PlanError(f"the speed of {gpu} is not known; known are {', '.join(GPU_SPEEDS)}")
    if plan.num_microbatches is None or plan.data_parallel_size is None or not plan.tokens_per_step:
        raise PlanError("the microbatches of a step are not known. Set batch sizes that divide.")
    precision = _precision(model)
    if speeds.peak(precision) is None:
        raise PlanError(f"{gpu} does not compute in {precision}")
    store = parameter_storage(model, optimizer=sections.get("optimizer"), ddp=sections.get("ddp"))
    length = read_field(sections.get("dataset"), "seq_length") or read_field(model, "seq_length")
    return StepSettings(
        gpu=speeds,
        precision=precision,
        seq_length=length,
        micro_batch_size=read_field(sections.get("train"), "micro_batch_size") or 1,
        microbatches=plan.num_microbatches,
        replicas=plan.data_parallel_size,
        graphs=read_graphs(model),
        dispatcher=_dispatcher(model),
        bf16_layers=_bf16_layers(model),
        fused_experts=bool(read_field(model, "use_transformer_engine_op_fuser", False)),
        fsdp=store.weights_sharded,
        sharded_optimizer=store.optimizer_sharded,
        frozen=sections.get("peft") is not None,
        recomputed=_recomputed_modules(model),
        recomputed_layers=_recomputed_layers(model, plan.shape),
    )


def _dispatcher(model: Any) -> Dispatcher:
    if read_field(model, "moe_token_dispatcher_type") != "flex":
        return "alltoall" if read_field(model, "moe_token_dispatcher_type") == "alltoall" else "allgather"
    return "hybridep" if read_field(model, "moe_flex_dispatcher_backend") == "hybridep" else "deepep"


def _bf16_layers(model: Any) -> tuple[int, int]:
    if not read_field(model, "first_last_layers_bf16", False):
        return 0, 0
    first, last = "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"
    return read_field(model, first, 1), read_field(model, last, 1)


def _recomputed_modules(model: Any) -> tuple[str, ...]:
    if read_field(model, "recompute_granularity") != "selective":
        return ()
    return tuple(read_field(model, "recompute_modules") or SELECTIVE_DEFAULT)


def _recomputed_layers(model: Any, shape: ModelShape) -> float:
    """Return the fraction of the layers that is recomputed as a whole; "block": so many of each virtual stage."""
    if read_field(model, "recompute_granularity") != "full":
        return 0.0
    if read_field(model, "recompute_method") != "block":
        return 1.0
    number: int = read_field(model, "recompute_num_layers") or 1
    return min(1.0, number * shape.pp * shape.vp / shape.num_layers)


def _precision(model: Any) -> Literal["bf16", "fp8", "fp4"]:
    if read_field(model, "fp4"):
        return "fp4"
    if read_field(model, "fp8"):
        return "fp8"
    if not (read_field(model, "bf16", False) or read_field(model, "fp16", False)):
        raise PlanError("the time of a run in float32 is not modelled. Set mixed_precision=bf16_mixed.")
    return "bf16"


def _parts(terms: StepTerms, coefficients: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each part; those in which stages wait are a part of their own."""
    busy = {
        name: coefficients[name]
        * (terms.microbatches * terms.microbatch.get(name, 0.0) + terms.step.get(name, 0.0))
        for name in TERMS
    }
    microbatch = sum(coefficients[name] * value for name, value in terms.microbatch.items())
    return {name: value for name, value in {**busy, WAITING: terms.waiting * microbatch}.items() if value}


def kind_of(shape: ModelShape, *, frozen: bool = False) -> str:
    """Return the kind of a model that the published runs distinguish: dense, with experts, hybrid, or with adapters."""
    if frozen:
        return "with adapters"
    if shape.pattern is not None:
        return "hybrid"
    return "dense" if shape.experts is None else "with experts"


def _published_error(gpu: str, precision: str, kind: str) -> tuple[UnseenRunErrors, tuple[float, float]]:
    """Return the errors of runs on a GPU in a precision of a kind of model, and the range of the throughput.

    Without such runs they are those of all runs, each predicted without the runs on its GPU.
    """
    fit = fitted()
    kept_back = fit["errors"]["kept_back"]
    for group in fit["errors_by_group"]:
        if (group["gpu"], group["precision"], group["kind"]) == (gpu, precision, kind):
            errors, of, (low, high) = group, f"{gpu} in {precision}, {kind}", group["range"]
            break
    else:
        errors, of = {**fit["errors"]["gpu_left_out"], "runs": fit["runs"]}, "all GPUs"
        low, high = fit["unseen_range"]
    error = UnseenRunErrors(
        runs=errors["runs"],
        of=of,
        left_out="gpu" if of == "all GPUs" else "model",
        median=errors["median"],
        within_25_percent=errors["within_25_percent"],
        never_fitted=fit["runs"] - fit["fitted_runs"],
        never_fitted_median=kept_back["median"],
        never_fitted_within_25_percent=kept_back["within_25_percent"],
        releases=tuple(fit["releases"]),
    )
    return error, (low, high)


def _extrapolated(gpu: str, precision: str, kind: str) -> str:
    known = [(group["gpu"], group["precision"], group["kind"]) for group in fitted()["errors_by_group"]]
    if (gpu, precision, kind) in known:
        return ""
    kinds = sorted({other for name, form, other in known if (name, form) == (gpu, precision)})
    if kinds:
        return f"no published run of a model that is {kind} on {gpu} in {precision}, only {', '.join(kinds)}"
    on = list(dict.fromkeys(form for name, form, _ in known if name == gpu))
    return f"no published run on {gpu} in {precision}" + (f", only in {', '.join(on)}" if on else "")


def _notes(model: Any) -> list[str]:
    notes = []
    if read_field(model, "attn_logit_softcapping") is not None:
        notes.append("attention is predicted as fused, and with a soft cap it is not, so that it is slower")
    if read_field(model, "overlap_moe_expert_parallel_comm", False):
        notes.append(
            "the overlap of expert communication with computation is that of the published runs on average"
        )
    if read_field(model, "num_moe_experts"):
        notes.append("experts are taken to be loaded evenly, as in the published runs")
    return notes
