"""Detection of slow GPUs by the detector of nvidia-resiliency-ext (NVRx). Standard library only.

The caller passes the detector: `mb_resilience.nvrx_detector` returns NVRx's class, and tests pass a fake.
"""

import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from mb_resilience.config import NVRxStragglerDetectionConfig

RELATIVE, INDIVIDUAL = "relative", "individual"


class PerformanceReport(Protocol):
    """Report of the detector on rank 0, such as NVRx's `Report`."""

    @property
    def gpu_relative_perf_scores(self) -> Mapping[int, float]:
        """Rank to speed as a fraction of the fastest rank's."""

    @property
    def gpu_individual_perf_scores(self) -> Mapping[int, float]:
        """Rank to speed as a fraction of its own best."""

    @property
    def rank_to_node(self) -> Mapping[int, str]:
        """Rank to host name."""

    def identify_stragglers(
        self, *, gpu_rel_threshold: float, gpu_indiv_threshold: float
    ) -> Mapping[str, Any]:
        """Return, under "straggler_gpus_relative" and "..._individual", objects whose `rank` is slow."""


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


class NVRxDetectorError(RuntimeError):
    """NVRx's detector cannot work in this process."""


BroadcastScores = Callable[["StragglerScores | None"], "StragglerScores | None"]
"""Returns rank 0's argument on all ranks, such as `straggler_torch.BroadcastFromRank0`. Collective."""


def single_rank(scores: "StragglerScores | None") -> "StragglerScores | None":
    """Return the scores unchanged, for a single rank."""
    return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerScores:
    """Scores of one report without NaN values; identical on all ranks."""

    relative: Mapping[int, float] = field(default_factory=dict)
    """Rank to speed as a fraction of the fastest rank's, 0 to 1."""
    individual: Mapping[int, float] = field(default_factory=dict)
    """Rank to speed as a fraction of its own best, 0 to 1."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Rank to host name."""
    slow: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """"relative" and "individual" to the ranks below the threshold, in order; a kind without such ranks is absent."""

    @classmethod
    def from_report(
        cls, report: PerformanceReport, settings: NVRxStragglerDetectionConfig
    ) -> "StragglerScores":
        """Return the scores of a report."""
        found = report.identify_stragglers(
            gpu_rel_threshold=settings.gpu_relative_perf_threshold,
            gpu_indiv_threshold=settings.gpu_individual_perf_threshold,
        )
        slow = {
            kind: sorted(each.rank for each in found[f"straggler_gpus_{kind}"])
            for kind in (RELATIVE, INDIVIDUAL)
            if found[f"straggler_gpus_{kind}"]
        }
        relative = _finite(report.gpu_relative_perf_scores) if settings.calc_relative_gpu_perf else {}
        individual = _finite(report.gpu_individual_perf_scores) if settings.calc_individual_gpu_perf else {}
        nodes = {rank: report.rank_to_node[rank] for rank in sorted({*relative, *individual})}
        return cls(relative=relative, individual=individual, nodes=nodes, slow=slow)

    def slow_gpu_summary(self) -> str | None:
        """Return one line that lists the slow GPUs; None if there are none."""
        texts = {
            RELATIVE: ("slower than the fastest", self.relative),
            INDIVIDUAL: ("slower than it was", self.individual),
        }
        pieces = [
            f"{self._describe_rank(rank, texts[kind][1])} is {texts[kind][0]}"
            for kind, ranks in self.slow.items()
            for rank in ranks
        ]
        return f"slow GPUs: {'; '.join(pieces)}" if pieces else None

    def lines(self, count: int) -> list[str]:
        """Return one line per kind of score, with `count` of the worst and of the best scores."""
        kinds = {"relative": self.relative, "individual": self.individual}
        return [
            f"GPU performance, {kind}: {self._best_and_worst(of, count)}" for kind, of in kinds.items() if of
        ]

    def metrics(self) -> dict[str, float]:
        """Return minimum, median and maximum of each kind, by names such as "gpu_relative_perf/min"."""
        return {
            f"gpu_{kind}_perf/{name}": value
            for kind, of in (("relative", self.relative), ("individual", self.individual))
            if of
            for name, value in (
                ("min", min(of.values())),
                ("median", statistics.median(of.values())),
                ("max", max(of.values())),
            )
        }

    def _best_and_worst(self, scores: Mapping[int, float], count: int) -> str:
        order = sorted(scores, key=lambda rank: (scores[rank], rank))
        if len(order) <= 2 * count:
            return ", ".join(self._describe_rank(rank, scores) for rank in order)
        worst = ", ".join(self._describe_rank(rank, scores) for rank in order[:count])
        best = ", ".join(self._describe_rank(rank, scores) for rank in order[: -count - 1 : -1])
        return f"worst of {len(order)}: {worst}; best: {best}"

    def _describe_rank(self, rank: int, scores: Mapping[int, float]) -> str:
        score = f"{scores[rank]:.2f}" if rank in scores else "unknown"
        return f"rank {rank} on {self.nodes.get(rank, 'unknown')} (score {score})"


def _finite(scores: Mapping[int, float]) -> dict[int, float]:
    return {rank: scores[rank] for rank in sorted(scores) if math.isfinite(scores[rank])}


class NVRxStragglerMonitor:
    """Context manager that measures training steps with NVRx's detector, and returns its scores on all ranks.

    The detector is shut down however the block ends, so that a restart in the same process can initialize it again.
    Each rank calls `begin_step` and `end_step` around every step.

    Args:
        settings: configuration section.
        detector: detector that measures the steps.
        rank: rank of this process; rank 0 logs the reports under `logger_name`.
        broadcast: returns rank 0's scores on all ranks.
        profile_cuda: whether to measure CUDA kernels; False without a GPU.
    """

    def __init__(
        self,
        settings: NVRxStragglerDetectionConfig,
        detector: NVRxDetector,
        *,
        rank: int = 0,
        broadcast: BroadcastScores = single_rank,
        profile_cuda: bool = True,
    ) -> None:
        self._settings = settings
        self._detector = detector
        self._rank = rank
        self._broadcast = broadcast
        self._profile_cuda = profile_cuda
        self._section = ExitStack()
        self._why: str | None = None
        self._logger = logging.getLogger(settings.logger_name)

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
