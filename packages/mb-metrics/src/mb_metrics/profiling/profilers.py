"""Profilers of a run: PyTorch and CUDA profilers, memory history, tensor inspection. Adapter for torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mb_metrics.profiling.config import ProfilingConfig, TensorInspectConfig
from mb_metrics.profiling.tensor_inspect import TensorInspection, start_tensor_inspection
from mb_metrics.profiling.torch_profilers import build_profiling, start_memory_history_recording
from mb_metrics.profiling.window import ProfilingCallback


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfilers:
    """Active profilers of the sections `profiling` and `tensor_inspect`."""

    profiling: ProfilingCallback | None
    """Profilers of the window of steps; None: there are none on this rank."""
    inspection: TensorInspection | None
    """Started tensor inspection; None: not enabled."""

    def attach(self, chunks: Sequence[Any]) -> list[object]:
        """Attach the profilers to the model, and return their callbacks, in the order of registration.

        Args:
            chunks: Model chunks of this rank.
        """
        if self.inspection is not None:
            self.inspection.attach(list(chunks))
        return [each for each in (self.inspection, self.profiling) if each is not None]


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
    callback = None
    if profiling is not None:
        memory = start_memory_history_recording(profiling, rank=rank)
        callback = build_profiling(profiling, folder=folder, rank=rank, memory=memory)
    return RunProfilers(
        profiling=callback if callback is not None and callback.is_active else None,
        inspection=start_tensor_inspection(tensor_inspect, save=save, loaded_step=loaded_step, rank=rank),
    )
