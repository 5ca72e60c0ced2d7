"""Scores of GPUs in a report of NVRx's straggler detector, as text and as metrics. Standard library only."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
        slow_gpus = report.identify_stragglers(
            gpu_rel_threshold=settings.gpu_relative_perf_threshold,
            gpu_indiv_threshold=settings.gpu_individual_perf_threshold,
        )
        slow = {
            kind: sorted(each.rank for each in slow_gpus[f"straggler_gpus_{kind}"])
            for kind in (RELATIVE, INDIVIDUAL)
            if slow_gpus[f"straggler_gpus_{kind}"]
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
