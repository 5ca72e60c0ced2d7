"""Training metrics of a run: throughput, norms, memory per stage, auxiliary losses. Imports torch."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_loop import StepResult
from mb_metrics import (
    EnergySampler,
    GradientNorms,
    Metrics,
    NormGroups,
    UnknownFlopsError,
    build_reductions,
    build_samplers,
    build_sinks,
    calc_params_l2_norm,
    expert_metrics,
    model_flops_per_token,
    peak_tflops,
    prediction_metrics,
)
from mb_metrics.mcore import megatron_expert_tracker, megatron_prediction_tracker
from mb_trainer.config import ConfigContainer
from mb_trainer.console import Voice
from mb_trainer.data import SampleSizes
from mb_trainer.job import Job

Sampler = Callable[[int], Mapping[str, Any]]
MEMORY = "memory/"

_logger = logging.getLogger(__name__)


class Norms(Protocol):
    """L2 norms of a model that is sharded over ranks. All calls are collective over its groups."""

    def gradients(self, *, loss_scale: Any) -> Mapping[str, Any]:
        """Return the norm of each gradient and the total norm, before the optimizer unscales and clips them."""

    def parameters(self) -> float:
        """Return the norm of all parameters."""


class Measured:
    """Metrics of a run, including those that are computed only at the end of a log interval.

    Every rank has one instance and makes the same calls; the logging rank writes. See `Metrics` for collective calls.

    Args:
        job: settings and run folder.
        voice: prints the console's lines.
        groups: process groups.
        chunks: this rank's model chunks.
        device: device of this rank.
        step: steps done before.
        vocab_size: rows of the output layer.
        sizes: average sizes of training samples, if they differ.
        norms: computes norms; None: those of one model over `groups`.
    """

    def __init__(  # noqa: PLR0913 (what is measured, each by name)
        self,
        job: Job,
        *,
        voice: Voice,
        groups: ProcessGroupCollection,
        chunks: Sequence[Any],
        device: torch.device,
        step: int,
        vocab_size: int,
        sizes: SampleSizes | None = None,
        norms: Norms | None = None,
    ) -> None:
        config, world = job.config, job.world
        self._config, self._groups, self._chunks, self._device = config, groups, chunks, device
        self._microbatches = 0
        self._norms = OneModelNorms(config, chunks, groups=groups) if norms is None else norms
        self._sizes = sizes
        self._flops_per_token = flops_per_token(
            config, vocab_size=vocab_size, seq_length=None if sizes is None else sizes.attention_length
        )
        samplers = build_samplers(config.logger, start_step=step)
        self._energy = [sampler for sampler in samplers if isinstance(sampler, EnergySampler)]
        reductions = per_stage(build_reductions(config.logger), stages=groups.pp.size())
        sinks = (
            build_sinks(
                config.logger,
                jsonl=job.folder.metrics,
                folder=job.folder.path,
                resume_step=step,
                run_config=config.to_dict(),
                stream=voice,
                print_evaluations=False,
            )
            if world.is_logging_rank
            else []
        )
        self.metrics = Metrics(
            sinks,
            log_interval=config.logger.log_interval,
            throughput_window=config.logger.throughput_window_size,
            micro_batch_size=config.train.micro_batch_size,
            total_steps=config.train.train_iters,
            total_samples=config.train.train_samples,
            world_size=world.world_size,
            flops_per_token=self._flops_per_token,
            peak_tflops=device_peak(config),
            group=torch.distributed.group.WORLD if reductions else None,
            reduce=reductions,
            samplers=[of_stage(sampler, groups) for sampler in samplers],
            time_unit=config.logger.runtime_time_unit if config.logger.log_runtime_to_tensorboard else None,
        )
        self._keeps = bool(sinks)
        if sinks:
            self.metrics.keep_file(job.folder.run_config)

    def operations(self, result: StepResult) -> float:
        """Return the model's floating-point operations of a step over all ranks; 0 if they are not known."""
        return (self._flops_per_token or 0.0) * (self.tokens(result) or 0)

    def tokens(self, result: StepResult) -> int | None:
        """Return the tokens of a step; for samples of different lengths the average, without padding."""
        return result.tokens if self._sizes is None else round(result.samples * self._sizes.tokens)

    def gradient_norms(self, step: int, *, loss_scale: Any) -> Mapping[str, Any]:
        """Return the gradient norms if they are enabled and a log interval ends with this step.

        Call it before the optimizer step. Collective over the model.
        """
        logger = self._config.logger
        asked = logger.log_l2_norm_grad_to_tensorboard and not logger.skip_train_metrics_log
        return (
            self._norms.gradients(loss_scale=loss_scale) if asked and step % logger.log_interval == 0 else {}
        )

    def at_interval(self, step: int, *, samples: int) -> dict[str, Any]:
        """Return the metrics of the end of a log interval; empty at other steps. Collective over the model."""
        train, logger = self._config.train, self._config.logger
        self._microbatches += samples // ((train.micro_batch_size or 1) * self._groups.dp.size())
        if step % logger.log_interval or logger.skip_train_metrics_log:
            return {}
        microbatches, self._microbatches = max(1, self._microbatches), 0
        norm = {"params-norm": self._norms.parameters()} if logger.log_params_norm else {}
        return {**self._losses_inside(step, microbatches=microbatches), **norm}

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time and the energy of this block from the step."""
        for sampler in self._energy:
            sampler.pause()
        try:
            with self.metrics.pause():
                yield
        finally:
            for sampler in self._energy:
                sampler.resume()

    def keep_checkpoint(self, path: Path) -> None:
        """Pass a checkpoint to trackers that store files, under the name "<folder of checkpoints>/iter_0000010"."""
        if self._keeps:
            self.metrics.keep_file(path, f"{path.parent.name}/{path.name}")

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Flush the metrics of all steps so far, because a resumed run starts after them, and pause. Collective."""
        self.metrics.flush()
        with self.pause():
            yield

    def _losses_inside(self, step: int, *, microbatches: int) -> dict[str, Any]:
        """Return the losses of routers and of multi-token prediction."""
        model, groups = self._config.model, self._groups
        found: dict[str, Any] = {}
        if getattr(model, "num_moe_experts", None):  # families without experts have no such field
            found |= expert_metrics(
                model,
                megatron_expert_tracker(),
                microbatches=microbatches,
                pp_group=groups.pp,
                dp_group=groups.dp,
                device=self._device,
            )
        if getattr(model, "mtp_num_layers", None):
            found |= prediction_metrics(megatron_prediction_tracker(), microbatches=microbatches, step=step)
        return found


class OneModelNorms:
    """Norms of one model over its process groups. Construction is collective over the pipeline."""

    def __init__(
        self, config: ConfigContainer, chunks: Sequence[Any], *, groups: ProcessGroupCollection
    ) -> None:
        self._chunks, self._groups = chunks, NormGroups.of(groups)
        self._shards = config.ddp.use_megatron_fsdp
        asked = config.logger.log_l2_norm_grad_to_tensorboard
        self._gradients = GradientNorms(chunks, groups=self._groups) if asked else None

    def gradients(self, *, loss_scale: Any) -> Mapping[str, Any]:
        """Return the gradient norms of all stages, as tensors and without a host synchronisation."""
        return {} if self._gradients is None else self._gradients(loss_scale=loss_scale)

    def parameters(self) -> float:
        """Return the norm of all parameters."""
        return calc_params_l2_norm(self._chunks, use_megatron_fsdp=self._shards, groups=self._groups)


def per_stage(reductions: Mapping[str, Any], *, stages: int) -> dict[str, Any]:
    """Return the reductions, and those of memory also per stage if there are several pipeline stages."""
    found = dict(reductions)
    for stage in range(stages if stages > 1 else 0):
        found |= {stage_name(name, stage): how for name, how in reductions.items() if name.startswith(MEMORY)}
    return found


def of_stage(sampler: Sampler, groups: ProcessGroupCollection) -> Sampler:
    """Return the sampler, with its memory values also under the name of this pipeline stage if there are several."""
    stage = groups.pp.rank()

    def sample(step: int) -> Mapping[str, Any]:
        found = sampler(step)
        return {
            **found,
            **{stage_name(name, stage): value for name, value in found.items() if name.startswith(MEMORY)},
        }

    return sample if groups.pp.size() > 1 else sampler


def stage_name(name: str, stage: int) -> str:
    """Return the name of a memory metric of a stage: "memory/stage 1/..."."""
    return f"{MEMORY}stage {stage}/{name.removeprefix(MEMORY)}"


def flops_per_token(
    config: ConfigContainer, *, vocab_size: int, seq_length: float | None = None
) -> float | None:
    """Return the model FLOPs of one token, forward and backward; None, with a log message, if they are not known.

    `seq_length` is the length of a sequence with the same attention per token; None: the model's.
    """
    try:
        return model_flops_per_token(
            config.model,
            seq_length=config.model.seq_length if seq_length is None else seq_length,
            vocab_size=vocab_size,
            decoder_seq_length=getattr(config.model, "decoder_seq_length", None),  # only a T5 has this field
        ).total
    except UnknownFlopsError as error:
        _logger.warning("no TFLOP/s: %s", error)
        return None


def device_peak(config: ConfigContainer) -> float | None:
    """Return the dense peak TFLOP/s of this GPU in the precision of the layers; None on a CPU or an unknown GPU."""
    if not torch.cuda.is_available():
        return None
    return peak_tflops(torch.cuda.get_device_name(), layer_precision(config.model))


def layer_precision(model: Any) -> str:
    """Return the precision of the matrix products in most layers, whose peak is the reference of MFU."""
    if model.fp4 is not None:
        return "fp4"
    return "fp8" if model.fp8 is not None else str(model.params_dtype)
