"""Megatron's `training_log`: conversion of its arguments to one metrics record per step. Adapter for torch.

Megatron Core is imported only for models with experts or multi-token prediction, whose metrics Megatron tracks.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mb_metrics import names
from mb_metrics.config import LoggerConfig
from mb_metrics.norms.gradients import GLOBAL, report_l2_norm_grad
from mb_metrics.norms.parameters import NormGroups, first_group, has_distributed_optimizer
from mb_metrics.recorder.auxiliary_losses import build_auxiliary_losses
from mb_metrics.recorder.bridge_api import BatchSizes
from mb_metrics.recorder.memory import (
    activation_bytes,
    memory_line,
    reduce_max_memory_across_pp_group,
    report_memory,
    theoretical_memory_line,
    weight_and_optimizer_bytes,
)
from mb_metrics.recorder.metrics import Metrics
from mb_metrics.recorder.reductions import (
    device_of,
    is_alone,
    own_rank,
    reduce_max_stat_across_model_parallel_group,
)
from mb_metrics.run.training_context import TrainCounters

ADVANCED, SKIPPED, NAN = "advanced iterations", "skipped iterations", "nan iterations"
_MEMORY_INTERVALS = 2


class TrainingLogConfig(Protocol):
    """Sections of `config` that `training_log` reads."""

    @property
    def logger(self) -> LoggerConfig:
        """The logging section."""

    @property
    def train(self) -> BatchSizes:
        """The training section."""

    @property
    def model(self) -> object:
        """The model section, with Megatron's field names; read for experts and multi-token prediction."""


class TrainingLogState(Protocol):
    """Fields of `global_state` that `training_log` reads."""

    @property
    def train_state(self) -> TrainCounters:
        """The counters."""

    @property
    def metrics(self) -> Metrics:
        """Receiver of the records; `Metrics([])` on ranks that do not write."""


def log_step(  # noqa: PLR0913 - the signature of Megatron trainers
    loss_dict: Mapping[str, Tensor],
    total_loss_dict: MutableMapping[str, Any],
    learning_rate: float | None,
    decoupled_learning_rate: float | None,
    loss_scale: float,
    report_memory_flag: bool,
    skipped_iter: int,
    grad_norm: float | Tensor | None,
    params_norm: float | None,
    num_zeros_in_grad: int | None,
    config: TrainingLogConfig,
    global_state: TrainingLogState,
    history_wct: object,
    model: Sequence[Any],
    pg_collection: Any = None,
    log_max_attention_logit: float | None = None,
    loaded_iteration: int = 0,
    seq_length: int | None = None,
    *,
    samples: int | None = None,
    tokens: int | None = None,
    num_microbatches: int | None = None,
    print_line: Callable[[str], object] = print,
) -> bool:
    """Record one step. Call it after each step, on every rank.

    `global_state.metrics` decides what is written to the console and to files, and when. It also measures time and
    throughput with its own clock, independent of timer levels. Between log intervals nothing is reduced and the host
    does not wait for the device. At the end of a log interval, the learning rate is the maximum over the model-parallel
    ranks and memory is the maximum over the pipeline stages; gradient norms and the metrics of experts and of
    multi-token prediction are reduced. This is collective over the groups of `pg_collection`.

    `total_loss_dict` accumulates the sums of the losses since the last interval and three counters: "advanced
    iterations", "skipped iterations" and "nan iterations" (steps, accepted by the optimizer or not, with a loss that
    is not finite). Values from the device stay on the device. All entries are reset to 0 at a log interval.

    In the first two log intervals after `loaded_iteration`, rank 0 prints the theoretical memory footprint and the
    first rank of each data-parallel group prints its allocated memory. Returns True while such a report is still due.

    Args:
        loss_dict: Loss name to mean loss; empty except on the last pipeline stage.
        total_loss_dict: Accumulators; the caller passes the same object to every call.
        learning_rate: Learning rate; None on a rank without trainable parameters.
        decoupled_learning_rate: Learning rate of the embeddings and the output layer, if it differs.
        loss_scale: Loss scale of the gradients.
        report_memory_flag: Return value of the previous call; True at the first call.
        skipped_iter: 1 if the optimizer skipped the update, else 0.
        grad_norm: L2 norm of the gradient.
        params_norm: L2 norm of the parameters.
        num_zeros_in_grad: Zeros in the gradient.
        config: The sections `logger`, `train` and `model`.
        global_state: The counters and the receiver of the records.
        history_wct: Not read; part of Megatron's signature.
        model: This rank's model chunks.
        pg_collection: Megatron's process groups; None: single process.
        log_max_attention_logit: The largest attention logit.
        loaded_iteration: Steps of the checkpoint that the run resumed from.
        seq_length: Tokens per sequence; None: tokens are not counted.
        samples: Sequences in this step over all ranks; None: `config.train.global_batch_size`.
        tokens: Tokens in this step over all ranks; None: sequences times `seq_length`.
        num_microbatches: Microbatches of this rank in this step; None: derived from the batch sizes.
        print_line: Function that prints a line of the memory report.
    """
    state = global_state.train_state
    batch = config.train.global_batch_size if samples is None else samples
    _count(total_loss_dict, loss_dict, skipped=bool(skipped_iter))
    values = {
        **loss_dict,
        names.LEARNING_RATE: learning_rate,
        names.DECOUPLED_LEARNING_RATE: decoupled_learning_rate,
        names.LOSS_SCALE: loss_scale,
        names.GRAD_NORM: grad_norm,
        names.NUM_ZEROS: num_zeros_in_grad,
        names.PARAMS_NORM: params_norm,
        names.MAX_ATTENTION_LOGIT: log_max_attention_logit,
        names.SKIPPED_SAMPLES: state.skipped_train_samples or None,
    }
    interval = config.logger.log_interval
    at_interval = state.step % interval == 0
    if at_interval:
        steps = total_loss_dict[ADVANCED] + total_loss_dict[SKIPPED]
        per_step = num_microbatches or _microbatches(config.train, batch, pg_collection)
        values |= _at_interval(
            config,
            model,
            pg_collection,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            microbatches=steps * per_step,
            step=state.step,
        )
    global_state.metrics.record(
        state.step,
        values,
        samples=batch,
        tokens=batch * seq_length if tokens is None and seq_length is not None else tokens,
        skipped=bool(skipped_iter),
        consumed_samples=state.consumed_train_samples,
    )
    if not at_interval:
        return report_memory_flag
    _reset_counters(total_loss_dict)
    if report_memory_flag:
        _print_memory(
            config, model, pg_collection, print_line, step=state.step, batch=batch, seq_length=seq_length
        )
    return report_memory_flag and state.step // interval - loaded_iteration // interval < _MEMORY_INTERVALS


def _count(totals: MutableMapping[str, Any], losses: Mapping[str, Tensor], *, skipped: bool) -> None:
    """Add a step to the sums and counters, without waiting for the device."""
    totals[ADVANCED] = totals.get(ADVANCED, 0) + (not skipped)
    totals[SKIPPED] = totals.get(SKIPPED, 0) + skipped
    bad: Any = 0
    for name, loss in losses.items():
        value = torch.as_tensor(loss).detach().float().reshape(())
        bad = (~torch.isfinite(value)) | bad if isinstance(bad, Tensor) else ~torch.isfinite(value)
        if not skipped:
            totals[name] = totals.get(name, 0) + value
    totals[NAN] = totals.get(NAN, 0) + (bad.int() if isinstance(bad, Tensor) else bad)


def _reset_counters(totals: MutableMapping[str, Any]) -> None:
    """Reset the sums and counters to 0, each on its device."""
    for name, total in totals.items():
        totals[name] = total * 0 if isinstance(total, int) else torch.zeros_like(torch.as_tensor(total))


def _at_interval(
    config: TrainingLogConfig,
    model: Sequence[Any],
    groups: Any,
    *,
    learning_rate: float | None,
    grad_norm: float | Tensor | None,
    microbatches: int,
    step: int,
) -> dict[str, Any]:
    """Return the metrics that are measured at the end of a log interval. Collective."""
    rate = reduce_max_stat_across_model_parallel_group(learning_rate, first_group(groups, "mp"))
    metrics: dict[str, Any] = {names.LEARNING_RATE: rate}
    logger, pp_group = config.logger, first_group(groups, "pp")
    if logger.log_memory_to_tensorboard:
        report = reduce_max_memory_across_pp_group(report_memory(logger.memory_keys), pp_group)
        metrics |= {f"memory/{name}": value for name, value in report.items()}
    if logger.log_l2_norm_grad_to_tensorboard:
        metrics |= _gradient_norms(model, groups, grad_norm=grad_norm)
    auxiliary_losses = build_auxiliary_losses(
        config.model, pp_group=pp_group, dp_group=first_group(groups, "dp"), device=device_of(pp_group)
    )
    return metrics | auxiliary_losses(step=step, microbatches=microbatches)


def _gradient_norms(
    model: Sequence[Any], groups: Any, *, grad_norm: float | Tensor | None
) -> dict[str, float]:
    """Return the norms of the gradients before the optimizer step, which scales all of them by one clipping factor.

    The factor is recovered as the norm that the optimizer measured before clipping, divided by the norm after it.
    """
    norms = report_l2_norm_grad(model, groups=None if groups is None else NormGroups.of(groups))
    before, after = 0.0 if grad_norm is None else float(grad_norm), norms[GLOBAL]
    factor = before / after if 0 < after < before < math.inf else 1.0
    return {name: norm * factor for name, norm in norms.items()}


def _microbatches(train: BatchSizes, batch: int, groups: Any) -> int:
    ranks = first_group(groups, "dp")
    return max(1, batch // (train.micro_batch_size * (1 if ranks is None else ranks.size())))


def _print_memory(
    config: TrainingLogConfig,
    model: Sequence[Any],
    groups: Any,
    print_line: Callable[[str], object],
    *,
    step: int,
    batch: int,
    seq_length: int | None,
) -> None:
    if own_rank() == 0:
        activations = None
        if seq_length is not None:
            activations = activation_bytes(
                config.model,
                seq_length=seq_length,
                micro_batch_size=config.train.micro_batch_size,
                num_microbatches=_microbatches(config.train, batch, groups),
            )
        print_line(theoretical_memory_line(weights=_weights(model, groups), activations=activations))
    data_parallel = first_group(groups, "dp")
    report = report_memory(config.logger.memory_keys)
    if report and (is_alone(data_parallel) or data_parallel.rank() == 0):
        print_line(memory_line(report, rank=own_rank(), steps=step))


def _weights(model: Sequence[Any], groups: Any) -> float:
    """Return the bytes of weights, gradients and optimizer on this rank."""
    ranks = first_group(groups, "dp_cp")
    total = 0.0
    for chunk in model:
        shared = has_distributed_optimizer(chunk) and ranks is not None
        total += weight_and_optimizer_bytes(
            chunk.parameters(), optimizer_shards=ranks.size() if shared else 1
        )
    return total
