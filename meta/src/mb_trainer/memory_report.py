"""Report of the theoretical and the allocated memory, after each of the first two log intervals of a run."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_loop import Callback, CallbackContext
from mb_metrics import report_memory
from mb_metrics.memory import (
    activation_bytes,
    memory_line,
    theoretical_memory_line,
    weight_and_optimizer_bytes,
)
from mb_trainer.config import ConfigContainer

INTERVALS = 2


class MemoryReport(Callback):
    """Callback that prints Megatron's two memory lines. Collective over the world at the end of these intervals.

    The first line has the weights, gradients and optimizer state of the rank with the maximum, and the activations of
    the first stage if a formula is known for them. The second line, of each first data-parallel rank, has the memory
    allocated on its GPU.

    Args:
        config: configuration of the run.
        chunks: this rank's model chunks.
        groups: process groups.
        say: logs a line.
    """

    def __init__(
        self,
        config: ConfigContainer,
        *,
        chunks: Sequence[Any],
        groups: ProcessGroupCollection,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._chunks, self._groups, self._say = config, chunks, groups, say
        self._left = INTERVALS

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Print the lines if they are due."""
        result = context.result
        if result is None or not self._left or result.step % self._config.logger.log_interval:
            return
        self._left -= 1
        self._say(
            theoretical_memory_line(weights=self._weights(), activations=self._activations(result.samples))
        )
        report = report_memory(self._config.logger.memory_keys)
        if report and self._groups.dp.rank() == 0:
            self._say(memory_line(report, rank=torch.distributed.get_rank(), steps=result.step))

    def _weights(self) -> float:
        """Return the maximum over all ranks, in bytes."""
        config, replicas = self._config, self._groups.dp_cp.size()
        everything = config.ddp.use_megatron_fsdp or config.dist.use_torch_fsdp2
        half = config.model.params_dtype != "float32" and not config.ddp.grad_reduce_in_fp32
        parameters = [parameter for chunk in self._chunks for parameter in chunk.parameters()]
        own = weight_and_optimizer_bytes(
            parameters,
            optimizer_shards=replicas if config.ddp.use_distributed_optimizer and not everything else 1,
            gradient_bytes=2 if half else 4,
        )
        most = torch.tensor(own / (replicas if everything else 1), device=parameters[0].device)
        torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
        return most.item()

    def _activations(self, samples: int) -> float | None:
        train, model = self._config.train, self._config.model
        each = train.micro_batch_size or 1
        return activation_bytes(
            model,
            seq_length=model.seq_length,
            micro_batch_size=each,
            num_microbatches=max(1, samples // (each * self._groups.dp.size())),
        )
