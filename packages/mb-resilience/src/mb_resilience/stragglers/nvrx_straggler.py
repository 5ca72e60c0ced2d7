"""Detection of slow GPUs by the detector of nvidia-resiliency-ext (NVRx). Standard library only.

The caller passes the detector: `nvrx_detector` imports NVRx's class, and tests pass a fake.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Protocol

from mb_resilience.config import NVRxStragglerDetectionConfig
from mb_resilience.errors import NVRxDetectorError
from mb_resilience.stragglers.detection import discard
from mb_resilience.stragglers.scores import PerformanceReport, StragglerScores


class NVRxDetector(Protocol):
    """Interface of NVRx's class `straggler.Detector`."""

    @property
    def initialized(self) -> bool:
        """Whether the detector is initialized and not shut down."""

    def initialize(
        self,
        *,
        scores_to_compute: Sequence[str],
        gather_on_rank0: bool,
        profiling_interval: int,
        report_time_interval: float,
    ) -> None:
        """Start the detector."""

    def detection_section(self, name: str, profile_cuda: bool) -> AbstractContextManager[None]:
        """Return a context manager that measures the kernels launched in it."""

    def generate_report_if_interval_elapsed(self) -> PerformanceReport | None:
        """Create a report if the interval has elapsed, on all ranks at the same step, and return it on rank 0."""

    def is_interval_elapsed(self) -> bool:
        """Return, on every rank, whether the last call created a report."""

    def shutdown(self) -> None:
        """Stop the detector."""


def nvrx_detector() -> NVRxDetector:
    """Return NVRx's detector class, which holds process-wide state."""
    # NVRx moved the module from `straggler` to `attribution.straggler` after version 0.4.
    name = "nvidia_resiliency_ext.straggler"
    if find_spec(name) is None:
        name = "nvidia_resiliency_ext.attribution.straggler"
    detector: NVRxDetector = import_module(name).Detector
    return detector


BroadcastScores = Callable[[StragglerScores | None], StragglerScores | None]
"""Returns rank 0's argument on all ranks, such as `torch_timing.broadcast_from_rank_0`. Collective."""


def single_rank(scores: StragglerScores | None) -> StragglerScores | None:
    """Return the scores unchanged, for a single rank."""
    return scores


class NVRxStragglerMonitor:
    """Callback that measures training steps with NVRx's detector, and has its scores on all ranks. A context manager.

    The detector is shut down however the block ends, so that a restart in the same process can initialize it again.
    A loop without events calls `begin_step` and `end_step` around every step, on each rank.

    Args:
        settings: configuration section.
        detector: detector that measures the steps.
        rank: rank of this process; rank 0 logs the reports under `logger_name`.
        broadcast: returns rank 0's scores on all ranks.
        profile_cuda: whether to measure CUDA kernels; False without a GPU.
        log: receives a warning that lists the slow GPUs of a report, on each rank.
    """

    def __init__(
        self,
        settings: NVRxStragglerDetectionConfig,
        detector: NVRxDetector,
        *,
        rank: int = 0,
        broadcast: BroadcastScores = single_rank,
        profile_cuda: bool = True,
        log: Callable[[str], object] = discard,
    ) -> None:
        self._settings = settings
        self._detector = detector
        self._rank = rank
        self._broadcast = broadcast
        self._profile_cuda = profile_cuda
        self._log_text = log
        self._section = ExitStack()
        self._why: str | None = None
        self._logger = logging.getLogger(settings.logger_name)
        self.metrics: Mapping[str, float] = {}
        """Scores of the step that ended last as metrics; empty without a report, and without `enable_logging`."""

    def __enter__(self) -> "NVRxStragglerMonitor":
        """Initialize the detector.

        Raises:
            NVRxDetectorError: the detector cannot be initialized, for example without NVIDIA's CUPTI.
        """
        if self._detector.initialized:  # left initialized by a run that failed
            self._detector.shutdown()
        kinds = {
            "relative_perf_scores": self._settings.calc_relative_gpu_perf,
            "individual_perf_scores": self._settings.calc_individual_gpu_perf,
        }
        try:
            self._detector.initialize(
                scores_to_compute=[kind for kind, requested in kinds.items() if requested],
                gather_on_rank0=True,
                profiling_interval=self._settings.profiling_interval,
                report_time_interval=self._settings.report_time_interval,
            )
        except (ImportError, RuntimeError) as error:
            raise NVRxDetectorError(
                f"nvrx_straggler.enabled: cannot initialize NVRx's detector ({error}). It measures GPU kernels through "
                "NVIDIA's CUPTI. Set nvrx_straggler.enabled=false; straggler.log_straggler=true does not need CUPTI."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._section.close()
        self._detector.shutdown()

    def on_train_step_start(self, context: object) -> None:
        """Start measuring a step."""
        self.begin_step()

    def on_train_step_end(self, context: object) -> None:
        """Stop measuring the step; read the scores if a report is due. Collective in that case."""
        scores = self.end_step()
        self.metrics = scores.metrics() if scores and self._settings.enable_logging else {}
        slow = scores.slow_gpu_summary() if scores else None
        if slow is not None:
            self._log_text(f"warning: {slow}")

    def begin_step(self) -> None:
        """Start measuring a step; ends a previous step that was not ended."""
        self._section.close()
        self._section.enter_context(self._detector.detection_section("step", self._profile_cuda))

    def end_step(self) -> StragglerScores | None:
        """Stop measuring the step, and return the scores of all ranks if a report is due. Collective in that case."""
        self._section.close()
        report = self._detector.generate_report_if_interval_elapsed()
        if not self._detector.is_interval_elapsed():
            return None
        scores = self._broadcast(
            None if report is None else StragglerScores.from_report(report, self._settings)
        )
        if scores is None:
            return None
        self._why = scores.slow_gpu_summary()
        if self._rank == 0:
            self._log(scores)
        return scores

    def stop_requested(self, step: int) -> str | None:
        """Return the reason why all ranks should stop after this step: slow GPUs in the last report.

        Always None without `stop_if_detected`.
        """
        return self._why if self._settings.stop_if_detected else None

    def _log(self, scores: StragglerScores) -> None:
        count = self._settings.num_gpu_perf_scores_to_print
        for line in scores.lines(count) if count else ():
            self._logger.info(line)
        if self._why is not None:
            self._logger.warning(self._why)
