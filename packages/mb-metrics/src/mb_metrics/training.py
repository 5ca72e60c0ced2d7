"""Training metrics of a distributed Megatron model from configuration sections. Adapter for torch."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch.distributed import ProcessGroup

from mb_metrics.auxiliary_losses import build_auxiliary_losses
from mb_metrics.build import build_reductions, build_samplers, build_sinks
from mb_metrics.config import LoggerConfig
from mb_metrics.energy import EnergySampler
from mb_metrics.flops_model import model_flops_per_token
from mb_metrics.flops_model_shape import FlopsModelShape, UnknownFlopsError
from mb_metrics.metrics import Metrics
from mb_metrics.model_norms import ModelNorms, Norms
from mb_metrics.peaks import layer_precision, peak_tflops
from mb_metrics.recorded_steps import Value
from mb_metrics.sink import Sink
from mb_metrics.sinks.console import TextStream
from mb_metrics.stage_memory import add_stage_reductions, add_stage_values
from mb_metrics.training_context import ModelGroups, SampleSizes
from mb_metrics.training_metrics import IntervalValues, TrainingMetrics

_logger = logging.getLogger(__name__)


class TrainSection(Protocol):
    """Fields that are read from section `train`."""

    @property
    def micro_batch_size(self) -> int | None:
        """Sequences per microbatch and rank."""

    @property
    def train_iters(self) -> int | None:
        """Length of the run in steps."""

    @property
    def train_samples(self) -> int | None:
        """Length of the run in samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOutput:
    """Destinations of the metrics, for the one rank that writes."""

    folder: Path
    """Run folder: metrics.jsonl, and the run ids of trackers."""
    run_config: Mapping[str, object] | None = None
    """Full configuration, shown by trackers; secrets are omitted."""
    config_file: Path | None = None
    """File of the configuration, uploaded to trackers that store files."""
    stream: TextStream | None = None
    """Output stream of the console; None: standard output."""
    print_evaluations: bool = False
    """Print a console line per evaluation; False: the training loop prints them."""

    def sinks(self, logger: LoggerConfig, *, start_step: int) -> list[Sink]:
        """Return the configured sinks; rows of steps after `start_step` are dropped."""
        return build_sinks(
            logger,
            jsonl=self.folder / "metrics.jsonl",
            folder=self.folder,
            resume_step=start_step,
            run_config=self.run_config,
            stream=self.stream,
            print_evaluations=self.print_evaluations,
        )


def build_training_metrics(  # noqa: PLR0913 - sections and parts, each by name
    logger: LoggerConfig,
    *,
    model: Any,
    train: TrainSection,
    groups: ModelGroups,
    chunks: Sequence[Any],
    device: torch.device | str,
    vocab_size: int,
    output: MetricsOutput | None,
    start_step: int = 0,
    sample_sizes: SampleSizes | None = None,
    norms: Norms | None = None,
    megatron_fsdp: bool = False,
    decoupled_rate: bool = False,
    step_values: Sequence[Callable[[], Mapping[str, Value]]] = (),
) -> TrainingMetrics:
    """Return the callback that records a training run, and the destinations of its metrics.

    All ranks call it, after the model is built and the GPU of this process is selected: gradient norms gather the
    parameter names of all pipeline stages.

    Args:
        logger: Section `logger`. With `skip_train_metrics_log` nothing is recorded.
        model: Section `model`, with Megatron's field names; its parallel degrees are not read.
        train: Section `train`.
        groups: Process groups of the model.
        chunks: This rank's model chunks.
        device: Device of this rank.
        vocab_size: Rows of the output layer, padding included.
        output: Destinations; None on every rank but the one that writes.
        start_step: Step of the checkpoint that the run resumes from; 0 without one.
        sample_sizes: Average sizes of training samples, if they differ in length.
        norms: Norms of a model with a parallel layout per module; None: one model over `groups`.
        megatron_fsdp: Whether Megatron FSDP shards the parameters.
        decoupled_rate: Record the learning rate of parameters with a separate schedule.
        step_values: Functions that return host metrics of each step.

    Raises:
        ModuleNotFoundError: a back-end is enabled and not installed.
    """
    records = not logger.skip_train_metrics_log
    gradients = records and logger.log_l2_norm_grad_to_tensorboard
    if norms is None:
        norms = ModelNorms(chunks, groups=groups, gradients=gradients, megatron_fsdp=megatron_fsdp)
    flops = flops_per_token(model, vocab_size=vocab_size, sample_sizes=sample_sizes)
    samplers = build_samplers(logger, start_step=start_step)
    reductions = add_stage_reductions(build_reductions(logger), stages=groups.pp.size())
    metrics = Metrics(
        [] if output is None else output.sinks(logger, start_step=start_step),
        log_interval=logger.log_interval,
        throughput_window=logger.throughput_window_size,
        micro_batch_size=train.micro_batch_size,
        total_steps=train.train_iters,
        total_samples=train.train_samples,
        flops_per_token=flops,
        peak_tflops=device_peak_tflops(model),
        group=torch.distributed.group.WORLD if reductions else None,
        reduce=reductions,
        samplers=[
            add_stage_values(sampler, stage=groups.pp.rank(), stages=groups.pp.size()) for sampler in samplers
        ],
        time_unit=logger.runtime_time_unit if logger.log_runtime_to_tensorboard else None,
    )
    if output is not None and output.config_file is not None:
        metrics.keep_file(output.config_file)
    return TrainingMetrics(
        metrics,
        samples_per_microbatch=(train.micro_batch_size or 1) * groups.dp.size(),
        flops_per_token=flops,
        tokens_per_sample=None if sample_sizes is None else sample_sizes.tokens,
        gradient_norms=norms.gradients if gradients else None,
        parameter_norm=norms.parameters if records and logger.log_params_norm else None,
        interval_values=_auxiliary_losses(model, groups, device) if records else [],
        step_values=step_values,
        pausable=[sampler for sampler in samplers if isinstance(sampler, EnergySampler)],
        decoupled_rate=decoupled_rate,
    )


def _auxiliary_losses(model: Any, groups: ModelGroups, device: torch.device | str) -> list[IntervalValues]:
    pp_group, dp_group = cast("ProcessGroup", groups.pp), cast("ProcessGroup", groups.dp)
    return [build_auxiliary_losses(model, pp_group=pp_group, dp_group=dp_group, device=device)]


def flops_per_token(model: Any, *, vocab_size: int, sample_sizes: SampleSizes | None = None) -> float | None:
    """Return the model FLOPs of one token, forward and backward; None, with a warning, if they are not known."""
    shape = FlopsModelShape(model)
    length = model.seq_length if sample_sizes is None else sample_sizes.attention_length
    try:
        return model_flops_per_token(
            model,
            seq_length=length,
            vocab_size=vocab_size,
            decoder_seq_length=shape.value("decoder_seq_length"),
        ).total
    except UnknownFlopsError as error:
        _logger.warning("no TFLOP/s: %s", error)
        return None


def device_peak_tflops(model: Any) -> float | None:
    """Return the dense peak TFLOP/s of the current GPU in the precision of the layers.

    None on a CPU or an unknown GPU.
    """
    if not torch.cuda.is_available():
        return None
    return peak_tflops(torch.cuda.get_device_name(), layer_precision(model))
