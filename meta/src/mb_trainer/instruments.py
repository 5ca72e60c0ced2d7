"""Optional profilers of a run: PyTorch and CUDA profilers, memory history, tensor inspection. Imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mb_loop import CallbackManager
from mb_metrics import (
    MemorySnapshot,
    TensorInspection,
    build_profiling,
    start_memory_history_recording,
    start_tensor_inspection,
)
from mb_trainer.finished import resumed_step
from mb_trainer.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """Active profilers of the sections `profiling` and `tensor_inspect`."""

    job: Job
    memory: MemorySnapshot | None
    inspection: TensorInspection | None

    @classmethod
    def start(cls, job: Job) -> "Instruments":
        """Start the memory history and the tensor inspection, before the model is built: its memory is recorded, too.

        Raises:
            mb_metrics.TensorInspectError: tensors cannot be inspected as configured.
        """
        config, rank = job.config, job.world.rank
        return cls(
            job=job,
            memory=start_memory_history_recording(config.profiling, rank=rank),
            inspection=start_tensor_inspection(
                config.tensor_inspect,
                save=config.checkpoint.save,
                loaded_step=0 if config.tensor_inspect is None else resumed_step(config.checkpoint),
                rank=rank,
            ),
        )

    def watch(self, chunks: Sequence[Any], callbacks: CallbackManager) -> None:
        """Attach the profilers to the model, and register their step callbacks."""
        if self.inspection is not None:
            self.inspection.attach(list(chunks))
            callbacks.register("on_train_step_end", self.inspection.on_train_step_end)
            callbacks.register("on_train_end", self.inspection.on_train_end)
        settings = self.job.config.profiling
        if settings is None:
            return
        profiling = build_profiling(
            settings, folder=self.job.folder.path, rank=self.job.world.rank, memory=self.memory
        )
        callbacks.register("on_train_step_start", profiling.on_train_step_start)
        callbacks.register("on_train_step_end", profiling.on_train_step_end)
        callbacks.register("on_train_end", profiling.on_train_end)
