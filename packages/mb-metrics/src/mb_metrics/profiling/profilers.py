"""Profilers of a run: PyTorch and CUDA profilers, memory history, tensor inspection. Adapter for torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mb_metrics.profiling.config import ProfilingConfig, TensorInspectConfig
from mb_metrics.profiling.tensor_inspect import TensorInspection, start_tensor_inspection
from mb_metrics.profiling.torch_profilers import build_profiling, start_memory_history_recording
from mb_metrics.profiling.window import MemorySnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfilers:
    """Active profilers of the sections `profiling` and `tensor_inspect`."""

    profiling: ProfilingConfig | None
    folder: Path
    rank: int
    memory: MemorySnapshot | None
    """Memory history that is recorded since the start; None: not recorded."""
    inspection: TensorInspection | None
    """Started tensor inspection; None: not enabled."""

    def attach(self, chunks: Sequence[Any]) -> list[object]:
        """Attach the profilers to the model, and return their callbacks, in the order of registration.

        Args:
            chunks: Model chunks of this rank.
        """
        callbacks: list[object] = []
        if self.inspection is not None:
            self.inspection.attach(list(chunks))
            callbacks.append(self.inspection)
        if self.profiling is not None:
            profiling = build_profiling(
                self.profiling, folder=self.folder, rank=self.rank, memory=self.memory
            )
            if profiling.is_active:
                callbacks.append(profiling)
        return callbacks


def start_profilers(
    profiling: ProfilingConfig | None,
    tensor_inspect: TensorInspectConfig | None,
    *,
    folder: str | Path,
    rank: int = 0,
    save: str | Path | None = None,
    loaded_step: int = 0,
) -> RunProfilers:
    """Start the memory history and the tensor inspection. Call it before the model is built, and `attach` after that.

    Args:
        profiling: Section `profiling`; None: nothing is profiled.
        tensor_inspect: Section `tensor_inspect`; None: no tensor is inspected.
        folder: Parent folder of the traces in torch_profile/ and chakra/.
        rank: Rank of this process.
        save: Checkpoint folder, the default folder of the logs of tensor inspection.
        loaded_step: Step of the checkpoint that the run resumes from.

    Raises:
        TensorInspectError: tensors cannot be inspected as configured.
    """
    return RunProfilers(
        profiling=profiling,
        folder=Path(folder),
        rank=rank,
        memory=start_memory_history_recording(profiling, rank=rank),
        inspection=start_tensor_inspection(tensor_inspect, save=save, loaded_step=loaded_step, rank=rank),
    )
