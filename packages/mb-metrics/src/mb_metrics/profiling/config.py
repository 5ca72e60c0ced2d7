"""Profiling and tensor inspection sections of the configuration, with the field names of Megatron trainers."""

from dataclasses import dataclass, field
from typing import Any

from mb_metrics.profiling.rules import PROFILING_RULES
from mb_metrics.section_check import reject_violations
from mb_schema.sections import StrictFields


@dataclass(kw_only=True)
class ProfilingConfig(StrictFields):
    """Configuration of profiling: steps, ranks and profilers.

    Steps are counted as completed: the window begins before step `profile_step_start` + 1 and ends when
    `profile_step_end` steps are completed. A run that ends or resumes inside the window profiles its part of it.
    """

    use_nsys_profiler: bool = False
    """Start and stop the collection of a waiting Nsight Systems session (capture range cudaProfilerApi)."""
    profile_step_start: int = 10
    """Completed steps at the start of the window."""
    profile_step_end: int = 12
    """Completed steps at the end of the window."""
    use_pytorch_profiler: bool = False
    """Write a Chrome trace of the window with torch.profiler."""
    pytorch_profiler_collect_shapes: bool = False
    """Record the shapes of tensors in the trace."""
    pytorch_profiler_collect_callstack: bool = False
    """Record the Python stack of each operation in the trace."""
    pytorch_profiler_collect_chakra: bool = False
    """Write a Chakra execution trace in addition."""
    profile_ranks: list[int] = field(default_factory=list)
    """Profiled ranks; empty: every rank."""
    record_memory_history: bool = False
    """Record GPU allocations, starting before the model is built, and write them at the end of the window and when
    memory runs out."""
    memory_snapshot_path: str = "snapshot.pickle"
    """Path of the memory history; "_<rank>" is inserted before the suffix."""
    record_shapes: bool = False
    """Record the shapes of tensors in the markers of the Nsight Systems session."""
    nvtx_ranges: bool = False
    """Mark each training step for Nsight Systems."""

    def finalize(self) -> None:
        """Check the section in isolation, without modifying it.

        Raises:
            SectionError: the window is invalid, both profilers are enabled, or a setting has no effect (V070).
        """
        reject_violations(self, section="profiling", rules=PROFILING_RULES)


@dataclass(kw_only=True)
class TensorInspectConfig(StrictFields):
    """Statistics of the tensors inside layers, by NVIDIA DL Framework Inspect (nvdlfw-inspect)."""

    enabled: bool = False
    """Enable tensor inspection."""
    features: dict[str, Any] | str | None = None
    """Settings of the tool, or the path of a YAML file that contains them."""
    feature_dirs: list[str] | None = None
    """Folders of Python files with additional features; None: the features of Transformer Engine, if installed."""
    log_dir: str | None = None
    """Folder of the logs; None: the checkpoint folder, or the working directory without one."""
    init_training_step: int = 0
    """Completed steps at the start of inspection; 0: the step of the checkpoint that the run resumes from."""
    allow_custom_feature_dirs: bool = field(
        default=False,
        metadata={
            "consent": "the Python files in tensor_inspect.feature_dirs would be executed. Remove the line, review the "
            "files, and set tensor_inspect.allow_custom_feature_dirs=true on the command line."
        },
    )
    """Allow the files in `feature_dirs` to be loaded and executed as code."""

    def finalize(self) -> None:
        """Check the section in isolation, without modifying it: the default of `feature_dirs` is applied later (V072).

        Raises:
            SectionError: inspection is enabled without features, or with folders that are not allowed.
            MissingPackageError: inspection is enabled and nvdlfw-inspect is not installed.
        """
        reject_violations(self, section="tensor_inspect", rules=PROFILING_RULES)
