"""The door to nvidia-resiliency-ext's background writer (0.6 or newer), as the strategy "nvrx" of Megatron Core.

It writes the data files and their index. Manifest and commit are done by this package's own writer process, as ever.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.nvrx import has_nvrx_async_support
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy, get_async_strategy
from torch.distributed.checkpoint.api import CheckpointException

from mb_checkpoint.background_writer import BackgroundWriter
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.device_sync import wait_for_current_device
from mb_checkpoint.mcore import quiet
from mb_checkpoint.mcore_plan import WritePlan
from mb_checkpoint.worker import JobResult, WriterJob
from mb_checkpoint.writing import DataFile

FAILURES = (OSError, RuntimeError, CheckpointException, CheckpointingException)


def is_available() -> bool:
    """Say whether a version that Megatron Core can use is installed."""
    return bool(has_nvrx_async_support())


class NvrxWriter:
    """Plans a save and has it written by nvidia-resiliency-ext; then finishes it with a writer of this package.

    Fits `save.PlannerLike` and `manager.BackgroundWriterLike`. All methods but `submit` are called on all ranks alike; polls
    while data is written are collective, as that library has it.

    Args:
        config: The section.
        dp_cp: Ranks that share the writing of what they all have; None: the first of them writes it.
        finisher: Finishes the save.
    """

    def __init__(self, config: CheckpointConfig, dp_cp: Any | None, finisher: BackgroundWriter) -> None:
        own = TorchDistSaveShardedStrategy(
            "torch_dist",
            1,
            thread_count=config.storage_writers_per_rank,
            cached_metadata=config.ckpt_assume_constant_structure,
            cpu_shm_mode=config.async_ckpt_use_cpu_shm,
        )
        self._strategy: Any = own if dp_cp is None else FullyParallelSaveStrategyWrapper(own, dp_cp)
        lasting = (
            torch.cuda.is_available()
        )  # the lasting process of that library divides by the number of GPUs
        self._queue: Any = get_async_strategy("nvrx", module="AsyncCallsQueue")[1](persistent=lasting)
        self._finisher = finisher
        self._request: Any = None
        self._writing = False

    @property
    def staged_bytes(self) -> int:
        """Host memory that this package holds for copies; the library's own is not known."""
        return self._finisher.staged_bytes

    @property
    def pid(self) -> int | None:
        """Process id of the writer that finishes."""
        return self._finisher.pid

    def plan(
        self, state: dict[str, Any], directory: Path, *, metadata: dict[str, Any], validate: bool
    ) -> WritePlan:
        """Plan the save. Tensors on the host are copied first, for the library writes those of the training."""
        for each in nested_values(state):
            if isinstance(each, ShardedTensor) and each.data is not None and each.data.device.type == "cpu":
                each.data = each.data.detach().clone()
        with quiet():
            self._request = dist_checkpointing.save(
                state,
                str(directory),
                self._strategy,
                validate_access_integrity=validate,
                async_sharded_save=True,
                content_metadata=metadata,
                async_strategy="nvrx",
            )
        return WritePlan(files=(), index=None)

    def write(self, folder: Path, rank: int, files: Sequence[DataFile]) -> None:
        """Pass the planned save on; arguments are those of `BackgroundWriter.write` and not used.

        Waits for the device: the persistent process of that library copies the tensors on a stream of its own.
        """
        wait_for_current_device()
        self._queue.schedule_async_request(self._request)
        self._request, self._writing = None, True

    def submit(self, job: WriterJob) -> None:
        """Let the save be finished."""
        self._finisher.submit(job)

    def result(self) -> JobResult | None:
        """Return what became of the data, then of the end of the save."""
        if not self._writing:
            return self._finisher.result()
        try:
            if not self._queue.maybe_finalize_async_calls(blocking=False):
                return None
        except FAILURES as error:
            self._writing = False
            return JobResult(failure=f"{type(error).__name__}: {error}")
        self._writing = False
        return JobResult()

    def stop(self) -> None:
        """End both processes; the next save starts others."""
        self._writing = False
        self._queue.close(abort=True)
        self._finisher.stop()

    def close(self) -> None:
        """End both processes for good."""
        self._writing = False
        self._queue.close(abort=True)
        self._finisher.close()
