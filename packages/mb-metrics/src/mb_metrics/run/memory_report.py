"""Callback that reports the theoretical and the allocated memory at the start of a run. Adapter for torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from mb_metrics.recorder.memory import (
    activation_bytes,
    memory_line,
    report_memory,
    theoretical_memory_line,
    weight_and_optimizer_bytes,
)
from mb_metrics.recorder.reductions import own_rank
from mb_metrics.run.sections import MeasuredModel, MetricsSettings
from mb_metrics.run.training_context import MetricsContext, RankGroup

REPORTS = 2
"""Number of log intervals after which memory is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSharding:
    """Distribution of weights, gradients and optimizer state over the ranks with the same weights."""

    model_shards: int = 1
    """Ranks over which weights, gradients and optimizer state are sharded (FSDP)."""
    optimizer_shards: int = 1
    """Ranks over which the optimizer state alone is sharded (distributed optimizer)."""
    gradient_bytes: int = 4
    """Bytes of one gradient element."""


class MemoryReport:
    """Callback that prints Megatron's two memory lines after each of the first two log intervals.

    The first line has the weights, gradients and optimizer state of the rank with the maximum, and the activations of
    the first stage if a formula is known for them. The second line, of each first data-parallel rank, has the memory
    allocated on its GPU. Collective over the world at the start, and never in a step, which it would make wait.

    Args:
        log_interval: Steps between reports.
        model: Model section, with Megatron's field names.
        micro_batch_size: Sequences per microbatch and rank.
        chunks: This rank's model chunks.
        data_parallel_group: Data-parallel ranks, without context parallelism.
        sharding: Distribution of the weights over ranks.
        memory_keys: Reported allocator statistics; None: a built-in table.
        print_line: Prints a line.
    """

    def __init__(
        self,
        *,
        log_interval: int,
        model: Any,
        micro_batch_size: int,
        chunks: Sequence[Any],
        data_parallel_group: RankGroup,
        sharding: WeightSharding,
        print_line: Callable[[str], None],
        memory_keys: Mapping[str, str] | None = None,
    ) -> None:
        self._log_interval = log_interval
        self._model, self._micro_batch_size = model, micro_batch_size
        self._chunks, self._data_parallel_group = chunks, data_parallel_group
        self._sharding = sharding
        self._memory_keys = memory_keys
        self._print_line = print_line
        self._left = REPORTS
        self._weight_bytes: float | None = None

    def on_train_start(self, context: MetricsContext) -> None:
        """Agree on the weights of the rank with the maximum. Collective over the world."""
        self._weight_bytes = self._largest_weight_bytes()

    def on_train_step_end(self, context: MetricsContext) -> None:
        """Print the lines if they are due."""
        result = context.result
        if result is None or not self._left or result.step % self._log_interval:
            return
        self._left -= 1
        if self._weight_bytes is None:  # the loop fires no start
            self._weight_bytes = self._largest_weight_bytes()
        per_microbatch = self._micro_batch_size * self._data_parallel_group.size()
        activations = activation_bytes(
            self._model,
            seq_length=self._model.seq_length,
            micro_batch_size=self._micro_batch_size,
            num_microbatches=max(1, result.samples // per_microbatch),
        )
        self._print_line(theoretical_memory_line(weights=self._weight_bytes, activations=activations))
        report = report_memory(self._memory_keys)
        if report and self._data_parallel_group.rank() == 0:
            self._print_line(memory_line(report, rank=own_rank(), steps=result.step))

    def _largest_weight_bytes(self) -> float:
        """Return the maximum over all ranks; synchronizes with the device if there are several."""
        parameters = [parameter for chunk in self._chunks for parameter in chunk.parameters()]
        own = weight_and_optimizer_bytes(
            parameters,
            optimizer_shards=self._sharding.optimizer_shards,
            gradient_bytes=self._sharding.gradient_bytes,
        )
        own /= self._sharding.model_shards
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return own
        largest = torch.tensor(own, dtype=torch.float64, device=parameters[0].device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest.item()


def build_memory_report(
    config: MetricsSettings, model: MeasuredModel, *, print_line: Callable[[str], None]
) -> MemoryReport | None:
    """Return the memory report of a run; None with `logger.skip_train_metrics_log`.

    Args:
        config: Sections of the run.
        model: The wrapped model.
        print_line: Prints a line.
    """
    logger, ddp = config.logger, config.ddp
    if logger.skip_train_metrics_log:
        return None
    replicas, fsdp = model.groups.dp_cp.size(), ddp.use_megatron_fsdp or config.dist.use_torch_fsdp2
    half_gradients = config.model.params_dtype != "float32" and not ddp.grad_reduce_in_fp32
    return MemoryReport(
        log_interval=logger.log_interval,
        model=config.model,
        micro_batch_size=config.train.micro_batch_size or 1,
        chunks=model.chunks,
        data_parallel_group=model.groups.dp,
        sharding=WeightSharding(
            model_shards=replicas if fsdp else 1,
            optimizer_shards=replicas if ddp.use_distributed_optimizer and not fsdp else 1,
            gradient_bytes=2 if half_gradients else 4,
        ),
        memory_keys=logger.memory_keys,
        print_line=print_line,
    )
