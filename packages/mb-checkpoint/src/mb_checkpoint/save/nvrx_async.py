"""Access to the background writer of nvidia-resiliency-ext (0.6 or newer), the strategy "nvrx" of Megatron Core.

It writes the data files and their index. Then the writer process of each rank hashes the files of that rank, and the
one of rank 0 writes the manifest and commits.
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

from mb_checkpoint.collectives import any_rank, host_group
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.errors import cause_of
from mb_checkpoint.mcore import quiet
from mb_checkpoint.megatron.pieces import pieces_without_data
from mb_checkpoint.save.background_writer import BackgroundWriter
from mb_checkpoint.save.device_sync import wait_for_current_device
from mb_checkpoint.save.planner import WritePlan
from mb_checkpoint.save.worker import HashJob, JobResult, WriterJob
from mb_checkpoint.save.writing import DataFile

FAILURES = (OSError, RuntimeError, CheckpointException, CheckpointingException)


def is_available() -> bool:
    """Return whether a version that Megatron Core can use is installed."""
    return bool(has_nvrx_async_support())


class NvrxWriter:
    """Planner and writer that delegates the data to nvidia-resiliency-ext and the commit to a writer of this package.

    Matches `planner.PlannerLike` and `async_save.BackgroundWriterLike`. Call all methods but `submit` on all ranks
    together: polls are collective while data is written, as that library requires.

    Args:
        config: The section.
        dp_cp: Ranks that share the writing of replicated data; None: the first of them writes it.
        finisher: Writer that finalizes the save.
    """

    def __init__(self, config: CheckpointConfig, dp_cp: Any | None, finisher: BackgroundWriter) -> None:
        self._config, self._dp_cp = config, dp_cp
        self._strategy = self._new_strategy()
        self._structure: list[Any] | None = None
        persistent = torch.cuda.is_available()  # its persistent process divides by the number of GPUs
        self._queue: Any = get_async_strategy("nvrx", module="AsyncCallsQueue")[1](persistent=persistent)
        self._finisher = finisher
        self._checksum = config.checksum
        self._request: Any = None
        self._writing: HashJob | None = None

    def _new_strategy(self) -> Any:
        reuse = self._config.ckpt_assume_constant_structure
        strategy = TorchDistSaveShardedStrategy(
            "torch_dist",
            1,
            thread_count=self._config.storage_writers_per_rank,
            cached_metadata=reuse,
            cpu_shm_mode=self._config.async_ckpt_use_cpu_shm,
        )
        if self._dp_cp is None:
            return strategy
        return FullyParallelSaveStrategyWrapper(
            strategy, host_group(self._dp_cp), do_cache_distribution=reuse
        )

    @property
    def staged_bytes(self) -> int:
        """Host memory that this package holds for copies; that of the library is unknown."""
        return self._finisher.staged_bytes

    def plan(
        self, state: dict[str, Any], directory: Path, *, metadata: dict[str, Any], validate: bool
    ) -> WritePlan:
        """Plan the save. Tensors on the host are copied first, because the library writes the original tensors."""
        if self._config.ckpt_assume_constant_structure:
            structure = pieces_without_data(state)
            if any_rank(structure != self._structure):  # a plan that is reused would leave out new tensors
                self._strategy, self._structure = self._new_strategy(), structure
        for entry in nested_values(state):
            if (
                isinstance(entry, ShardedTensor)
                and entry.data is not None
                and entry.data.device.type == "cpu"
            ):
                entry.data = entry.data.detach().clone()
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
        """Submit the planned save; `files` are those of this package alone: the position of the data loader.

        Waits for the device: the persistent process of that library copies the tensors on a separate stream.
        """
        wait_for_current_device()
        self._queue.schedule_async_request(self._request)
        self._request = None
        self._writing = HashJob(folder=folder, rank=rank, files=tuple(files), checksum=self._checksum)

    def submit(self, job: WriterJob) -> None:
        """Submit the finalization of the save."""
        self._finisher.submit(job)

    def result(self) -> JobResult | None:
        """Return the result of writing and hashing the data, then that of finalizing the save."""
        if self._writing is None:
            return self._finisher.result()
        try:
            if not self._queue.maybe_finalize_async_calls(blocking=False):
                return None
            self._finisher.submit(self._writing)
        except FAILURES as error:
            self._writing = None
            return JobResult(failure=cause_of(error))
        self._writing = None
        return None

    def stop(self) -> None:
        """Kill both processes; the next save starts new ones."""
        self._writing = None
        self._queue.close(abort=True)
        self._finisher.stop()

    def close(self) -> None:
        """Kill both processes and release their resources."""
        self._writing = None
        self._queue.close(abort=True)
        self._finisher.close()
