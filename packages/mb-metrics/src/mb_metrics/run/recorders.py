"""Callbacks that record a run, from its configuration: metrics, events and memory. Adapter for torch."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed import ProcessGroup

from mb_metrics.config import LoggerConfig
from mb_metrics.flops.model import model_flops_per_token
from mb_metrics.flops.model_shape import UnknownFlopsError
from mb_metrics.flops.peaks import layer_precision, peak_tflops
from mb_metrics.norms.model import Norms, build_norms
from mb_metrics.norms.tensors import TensorNorms, build_tensor_norms
from mb_metrics.recorder.auxiliary_losses import build_auxiliary_losses
from mb_metrics.recorder.energy import EnergySampler
from mb_metrics.recorder.memory_sampler import add_stage_reductions, add_stage_values
from mb_metrics.recorder.metrics import Metrics
from mb_metrics.recorder.recorded_steps import Value
from mb_metrics.run.event_recorder import EventRecorder
from mb_metrics.run.events import EventLog, read_last_step
from mb_metrics.run.memory_report import MemoryReport, build_memory_report
from mb_metrics.run.sections import MeasuredModel, MetricsSettings
from mb_metrics.run.training_metrics import IntervalValues, TrainingMetrics
from mb_metrics.sinks.build import build_reductions, build_samplers, build_sinks
from mb_metrics.sinks.console import TextStream
from mb_metrics.sinks.sink import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOutput:
    """Destinations of the metrics and events of a run, for the one rank that writes."""

    folder: Path
    """Run folder: metrics.jsonl, events.jsonl, and the run ids of trackers."""
    run_config: Mapping[str, object] | None = None
    """Full configuration, shown by trackers; secrets are omitted."""
    config_file: Path | None = None
    """File of the configuration, uploaded to trackers that store files."""
    stream: TextStream | None = None
    """Output stream of the console; None: standard output."""
    print_evaluations: bool = True
    """Print a console line per evaluation; False: the training loop prints them."""
    description: Mapping[str, object] = field(default_factory=dict)
    """Fields of the event with which the run starts or resumes."""
    resume_description: Mapping[str, object] = field(default_factory=dict)
    """Additional fields of this event if steps were completed before."""
    process_start: float | None = None
    """Start of this process in seconds since the epoch; None: the event has no duration of the start."""
    more_sinks: Sequence[Sink] = ()
    """Sinks in addition to those of the section `logger`."""

    def sinks(self, logger: LoggerConfig, *, start_step: int) -> list[Sink]:
        """Return the configured sinks; rows of steps after `start_step` are dropped."""
        configured = build_sinks(
            logger,
            jsonl=self.folder / "metrics.jsonl",
            folder=self.folder,
            resume_step=start_step,
            run_config=self.run_config,
            stream=self.stream,
            print_evaluations=self.print_evaluations,
            end_mark=False,  # events.jsonl has the stop
        )
        return [*configured, *self.more_sinks]

    def event_recorder(self) -> EventRecorder:
        """Return the callback that writes events.jsonl. Call it before `sinks`, which drops rows of metrics.jsonl."""
        return EventRecorder(
            EventLog(self.folder / "events.jsonl"),
            description=self.description,
            resume_description=self.resume_description,
            previous=read_last_step(self.folder / "metrics.jsonl"),
            process_start=self.process_start,
        )


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecorders:
    """Recorders of this rank."""

    metrics: TrainingMetrics
    events: EventRecorder | None = None
    """Writer of events.jsonl; None on every rank but the one that writes."""
    memory: MemoryReport | None = None
    """Report of the memory; None if metrics are disabled."""
    tensor_norms: TensorNorms | None = None
    """Writer of tensor_norms.jsonl; None if no step is chosen."""

    @property
    def callbacks(self) -> list[object]:
        """Callbacks of the recorders, in the order of registration."""
        return [
            each for each in (self.metrics, self.events, self.memory, self.tensor_norms) if each is not None
        ]


@contextmanager
def record_run(
    config: MetricsSettings,
    model: MeasuredModel,
    *,
    output: MetricsOutput | None,
    start_step: int = 0,
    sample_lengths: Mapping[float, float] | None = None,
    flops: float | None = None,
    step_values: Sequence[Callable[[], Mapping[str, Value]]] = (),
    print_line: Callable[[str], None] = print,
) -> Iterator[RunRecorders]:
    """Record a training run while the block runs, as configured. Collective; raises as `build_training_metrics`.

    The stop of the run is written when the block ends, so that an evaluation after training precedes it.

    The other arguments are those of `build_training_metrics`; `print_line` prints a line of the memory report.
    """
    with ExitStack() as stack:
        # The order matters. Events come first, because they read the last row of metrics.jsonl before the metrics
        # drop rows of it; they are entered after the metrics, so that at the end the stop of the run is written first
        # and the metrics are closed after it.
        events = None if output is None else output.event_recorder()
        metrics = stack.enter_context(
            build_training_metrics(
                config,
                model,
                output=output,
                start_step=start_step,
                sample_lengths=sample_lengths,
                flops=flops,
                step_values=step_values,
            )
        )
        if events is not None:
            stack.enter_context(events)
        memory = build_memory_report(config, model, print_line=print_line)
        folder = None if output is None else output.folder
        norms = build_tensor_norms(config, model, folder=folder)
        yield RunRecorders(metrics=metrics, events=events, memory=memory, tensor_norms=norms)


def build_training_metrics(
    config: MetricsSettings,
    model: MeasuredModel,
    *,
    output: MetricsOutput | None,
    start_step: int = 0,
    sample_lengths: Mapping[float, float] | None = None,
    norms: Norms | None = None,
    flops: float | None = None,
    step_values: Sequence[Callable[[], Mapping[str, Value]]] = (),
) -> TrainingMetrics:
    """Return the callback that records a training run; with several pipeline stages, samples are kept per stage.

    All ranks call it, after the model is built and the GPU of this process is selected: gradient norms gather the
    parameter names of all pipeline stages.

    Args:
        config: Sections of the run. With `logger.skip_train_metrics_log` nothing is recorded.
        model: The wrapped model.
        output: Destinations; None on every rank but the one that writes.
        start_step: Step of the checkpoint that the run resumes from; 0 without one.
        sample_lengths: Lengths of training samples, each with its number of samples; None: all have the model's.
        norms: Norms of a model with a custom parallel layout; None: those of `model`.
        flops: Model FLOPs of one token, for a model with frozen weights or adapters; None: those of a model whose
            weights are all trained.
        step_values: Functions that return host metrics of each step.

    Raises:
        ModuleNotFoundError: a back-end is enabled and not installed.
    """
    logger, groups = config.logger, model.groups
    records = not logger.skip_train_metrics_log
    gradients = records and logger.log_l2_norm_grad_to_tensorboard
    if norms is None:
        norms = build_norms(model, gradients=gradients, megatron_fsdp=config.ddp.use_megatron_fsdp)
    if flops is None:
        flops = flops_per_token(config.model, vocab_size=model.vocab_size, sample_lengths=sample_lengths)
        _warn_of_frozen(model.chunks)
    stage, stages = groups.pp.rank(), groups.pp.size()
    reductions = add_stage_reductions(build_reductions(logger), stages=stages)
    samplers = build_samplers(logger, start_step=start_step)
    metrics = Metrics(
        [] if output is None else output.sinks(logger, start_step=start_step),
        log_interval=logger.log_interval,
        throughput_window=logger.throughput_window_size,
        micro_batch_size=config.train.micro_batch_size,
        total_steps=config.train.train_iters,
        total_samples=config.train.train_samples,
        flops_per_token=flops,
        peak_tflops=device_peak_tflops(config.model),
        group=torch.distributed.group.WORLD if reductions else None,
        reduce=reductions,
        samplers=[add_stage_values(sampler, stage=stage, stages=stages) for sampler in samplers],
        time_unit=logger.runtime_time_unit if logger.log_runtime_to_tensorboard else None,
    )
    if output is not None and output.config_file is not None:
        metrics.keep_file(output.config_file)
    interval_values: list[IntervalValues] = []
    if records:
        pp_group, dp_group = cast("ProcessGroup", groups.pp), cast("ProcessGroup", groups.dp)
        interval_values.append(
            build_auxiliary_losses(config.model, pp_group=pp_group, dp_group=dp_group, device=model.device)
        )
    return TrainingMetrics(
        metrics,
        samples_per_microbatch=(config.train.micro_batch_size or 1) * groups.dp.size(),
        flops_per_token=flops,
        gradient_norms=norms.gradients if gradients else None,
        parameter_norm=norms.parameters if records and logger.log_params_norm else None,
        interval_values=interval_values,
        step_values=step_values,
        pausable=[sampler for sampler in samplers if isinstance(sampler, EnergySampler)],
        decoupled_rate=config.optimizer.decoupled_lr is not None,
    )


def flops_per_token(
    model: Any, *, vocab_size: int, sample_lengths: Mapping[float, float] | None
) -> float | None:
    """Return the model FLOPs of one token, forward and backward; None, with a warning, if they are not known."""
    length = model.seq_length if sample_lengths is None else sample_lengths
    try:
        return model_flops_per_token(model, seq_length=length, vocab_size=vocab_size).total
    except UnknownFlopsError as error:
        _logger.warning("no TFLOP/s: %s", error)
        return None


def _warn_of_frozen(chunks: Sequence[Any]) -> None:
    """Warn if weights of this rank are frozen, because the FLOPs are those of a model that is trained completely."""
    weights = [parameter for chunk in chunks for parameter in chunk.parameters() if parameter.dim() > 1]
    frozen = sum(parameter.numel() for parameter in weights if not parameter.requires_grad)
    if frozen:
        _logger.warning(
            "TFLOP/s and MFU are too high: %s of %s parameters of this rank are frozen, and their gradients are "
            "counted. Pass `flops`.",
            f"{frozen:,}",
            f"{sum(parameter.numel() for parameter in weights):,}",
        )


def device_peak_tflops(model: Any) -> float | None:
    """Return the dense peak TFLOP/s of the current GPU in the precision of the layers.

    None on a CPU or an unknown GPU.
    """
    if not torch.cuda.is_available():
        return None
    return peak_tflops(torch.cuda.get_device_name(), layer_precision(model))
