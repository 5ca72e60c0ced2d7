"""Slow GPUs, as the detector of nvidia-resiliency-ext (NVRx) scores them. The standard library only.

The detector is handed in: `mb_resilience.nvrx_detector` has NVRx's own, and a fake one has four functions.
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
    """What the detector returns on rank 0; NVRx's `Report` fits."""

    @property
    def gpu_relative_perf_scores(self) -> Mapping[int, float]:
        """Rank to score: its speed as a part of the fastest rank's."""

    @property
    def gpu_individual_perf_scores(self) -> Mapping[int, float]:
        """Rank to score: its speed as a part of its own best."""

    @property
    def rank_to_node(self) -> Mapping[int, str]:
        """Rank to name of its machine."""

    def identify_stragglers(
        self, *, gpu_rel_threshold: float, gpu_indiv_threshold: float
    ) -> Mapping[str, Any]:
        """Return, under "straggler_gpus_relative" and "..._individual", objects whose `rank` is slow."""


class NVRxDetector(Protocol):
    """NVRx's class `straggler.NVRxDetector`, or an object with the same functions."""

    @property
    def initialized(self) -> bool:
        """Whether somebody has begun and not ended."""

    def initialize(
        self,
        *,
        scores_to_compute: Sequence[str],
        gather_on_rank0: bool,
        profiling_interval: int,
        report_time_interval: float,
    ) -> None:
        """Begin."""

    def detection_section(self, name: str, profile_cuda: bool) -> AbstractContextManager[None]:
        """Return a block whose kernels are measured."""

    def generate_report_if_interval_elapsed(self) -> PerformanceReport | None:
        """Make a report where it is time, which all ranks find at the same step, and return it on rank 0."""

    def is_interval_elapsed(self) -> bool:
        """Say on every rank whether the last call made a report."""

    def shutdown(self) -> None:
        """End."""


class NVRxDetectorError(RuntimeError):
    """NVRx's detector cannot work in this process."""


BroadcastScores = Callable[["StragglerScores | None"], "StragglerScores | None"]
"""Returns on all ranks what rank 0 gives: `straggler_torch.SharedByRank0`. Collective."""


def single_rank(scores: "StragglerScores | None") -> "StragglerScores | None":
    """Share with nobody: there is one rank."""
    return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerScores:
    """One report, with what is not a number left out; alike on all ranks."""

    relative: Mapping[int, float] = field(default_factory=dict)
    """Rank to its speed as a part of the fastest rank's, 0 to 1."""
    individual: Mapping[int, float] = field(default_factory=dict)
    """Rank to its speed as a part of its own best, 0 to 1."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Rank to name of its machine."""
    slow: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """"relative" and "individual" to the ranks below the threshold, in order; a kind without such ranks is absent."""

    @classmethod
    def from_report(
        cls, report: PerformanceReport, settings: NVRxStragglerDetectionConfig
    ) -> "StragglerScores":
        """Read a report."""
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
        """Name the slow GPUs in one line; None: there are none."""
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
        """Return a line for each kind of score, with so many of the worst and of the best."""
        kinds = {"relative": self.relative, "individual": self.individual}
        return [
            f"GPU performance, {kind}: {self._best_and_worst(of, count)}" for kind, of in kinds.items() if of
        ]

    def metrics(self) -> dict[str, float]:
        """Return least, middle and most of each kind, by names such as "gpu_relative_perf/min"."""
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
    """Lets NVRx's detector watch the steps of a loop, and tells all ranks what it found on rank 0.

    A context, in which the detector is on; it is off on every way out, so that a restart in the same process may begin
    again. Each rank calls `begin_step` and `end_step` around every step.

    Args:
        settings: the section.
        detector: measures.
        rank: of this process; rank 0 gets the reports, and logs them under `logger_name`.
        share: tells all ranks what rank 0 knows.
        profile_cuda: measure kernels; False where there are none.
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
        """Begin.

        Raises:
            NVRxDetectorError: the detector cannot, as without NVIDIA's CUPTI.
        """
        if self._detector.initialized:  # by a run that could not end it
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
                f"nvrx_straggler.enabled: NVRx's detector cannot begin ({error}); it measures kernels through "
                "NVIDIA's CUPTI, on a GPU. Set nvrx_straggler.enabled=false; straggler.log_straggler=true does without."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._section.close()
        self._detector.shutdown()

    def begin_step(self) -> None:
        """Begin to measure a step; one that was not ended is over."""
        self._section.close()
        self._section.enter_context(self._detector.detection_section("step", self._profile_cuda))

    def end_step(self) -> StragglerScores | None:
        """Measure no further; return the scores of all ranks where it is time. Collective then."""
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
        """Return why all ranks should leave after this step: slow GPUs in the last report, if they are to end a run."""
        return self._why if self._settings.stop_if_detected else None

    def _log(self, scores: StragglerScores) -> None:
        count = self._settings.num_gpu_perf_scores_to_print
        for line in scores.lines(count) if count else ():
            self._logger.info(line)
        if self._why is not None:
            self._logger.warning(self._why)
