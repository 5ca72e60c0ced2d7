"""The configuration of profiling and tensor inspection, under the field names of Megatron trainers."""

from dataclasses import dataclass, field
from typing import Any

from mb_metrics.profiling_rules import PROFILING_RULES
from mb_metrics.rule import refuse
from mb_metrics.strict_fields import StrictFields


@dataclass(kw_only=True)
class ProfilingConfig(StrictFields):
    """Which steps of which ranks are profiled, and with what.

    Steps are counted as done: the window begins before step `profile_step_start` + 1 and ends when
    `profile_step_end` steps are done. A run that ends or resumes inside it is profiled for the part that it does.
    """

    use_nsys_profiler: bool = False
    """Start and stop the collection of an Nsight Systems session that waits for it (capture range cudaProfilerApi)."""
    profile_step_start: int = 10
    """Steps done when the window begins."""
    profile_step_end: int = 12
    """Steps done when it ends."""
    use_pytorch_profiler: bool = False
    """Write a Chrome trace of the window with torch.profiler."""
    pytorch_profiler_collect_shapes: bool = False
    """Record the shapes of tensors in the trace."""
    pytorch_profiler_collect_callstack: bool = False
    """Record the Python stack of each operation in the trace."""
    pytorch_profiler_collect_chakra: bool = False
    """Write a Chakra execution trace, too."""
    profile_ranks: list[int] = field(default_factory=list)
    """Ranks that are profiled; empty: every rank."""
    record_memory_history: bool = False
    """Record allocations of the GPU from before the model is built, and write them down when the window ends, and
    when memory runs out."""
    memory_snapshot_path: str = "snapshot.pickle"
    """File of that record; "_<rank>" goes before its extension."""
    record_shapes: bool = False
    """Record the shapes of tensors in the markers of the Nsight Systems session."""
    nvtx_ranges: bool = False
    """Mark each training step for Nsight Systems."""

    def finalize(self) -> None:
        """Check the section alone. Changes nothing.

        Raises:
            SectionError: the steps are no window, both profilers are on, or nothing acts on a setting (V070).
        """
        refuse(self, section="profiling", rules=PROFILING_RULES)


@dataclass(kw_only=True)
class TensorInspectConfig(StrictFields):
    """Statistics of the tensors inside layers, by NVIDIA DL Framework Inspect (nvdlfw-inspect)."""

    enabled: bool = False
    """Look at tensors."""
    features: dict[str, Any] | str | None = None
    """What to look at: the tool's settings, or the path of a YAML file of them."""
    feature_dirs: list[str] | None = None
    """Folders of Python files with further features; None: those that Transformer Engine ships, where it is there."""
    log_dir: str | None = None
    """Folder of the logs; None: beside the checkpoints, or the working directory."""
    init_training_step: int = 0
    """Steps done when looking begins; 0: those of the checkpoint that the run resumes from."""
    allow_custom_feature_dirs: bool = False
    """Load the files of `feature_dirs`, which are code and run as it."""

    def finalize(self) -> None:
        """Check the section alone. Changes nothing: without `feature_dirs` the run takes those that are there (V072).

        Raises:
            SectionError: it is on with nothing to look at, or with folders and no leave to load them.
            MissingPackageError: it is on, and nvdlfw-inspect is not installed.
        """
        refuse(self, section="tensor_inspect", rules=PROFILING_RULES)
