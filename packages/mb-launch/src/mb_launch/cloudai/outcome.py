"""Success and speed of a run, as CloudAI reads them from its log. The standard library only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Protocol

LAUNCHER_LOG = "cloudai_megatron_bridge_launcher.log"
REPORT = "report.txt"
METRIC_ERROR = -1.0
"""Value of a metric that the log does not contain."""

KEPT = 10
"""Number of last steps that count; earlier ones are warm-up."""

SHOWN = 40
"""Number of last lines of a log that a failure message includes."""

_STEP = re.compile(
    r"Step Time\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*s.*?GPU utilization:\s*([0-9]+(?:\.[0-9]+)?)\s*(?:MODEL_)?TFLOP/s/GPU",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatusResult:
    """Success of a run."""

    is_successful: bool
    """True if the log has a finished step."""
    error_message: str = ""
    """Description of the failure, empty after a success."""


class TestRun(Protocol):
    """A run of a test."""

    @property
    def output_path(self) -> Path:
        """Folder that the launcher writes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesStatistics:
    """Statistics of a series of numbers."""

    avg: float
    median: float
    min: float
    max: float
    std: float
    """Standard deviation of the population, not of a sample."""

    @classmethod
    def of(cls, series: list[float]) -> "SeriesStatistics":
        """Return the statistics of a non-empty series."""
        return cls(
            avg=mean(series), median=median(series), min=min(series), max=max(series), std=pstdev(series)
        )

    def __str__(self) -> str:
        return "\n".join(f"  {name}: {getattr(self, name)}" for name in self.__slots__)


def extract_mbridge_metrics(logs: str) -> tuple[list[float], list[float]]:
    """Return seconds and TFLOP/s per GPU of the last ten steps in a log."""
    steps = [match.groups() for match in map(_STEP.search, logs.splitlines()) if match is not None][-KEPT:]
    return [float(seconds) for seconds, _ in steps], [float(tflops) for _, tflops in steps]


def was_run_successful(run: TestRun) -> JobStatusResult:
    """Return whether a run finished a step; its exit code does not count."""
    log = Path(run.output_path) / LAUNCHER_LOG
    if not log.is_file():
        return JobStatusResult(
            is_successful=False, error_message=f"There is no {LAUNCHER_LOG} in {run.output_path}."
        )
    text = log.read_text(encoding="utf-8", errors="ignore")
    if extract_mbridge_metrics(text)[0]:
        return JobStatusResult(is_successful=True)
    return JobStatusResult(is_successful=False, error_message="\n".join(text.splitlines()[-SHOWN:]))


def metric_of_run(run: TestRun, name: str = "default") -> float:
    """Return a metric: "step-time" or "default" in seconds, "tflops-per-gpu"; METRIC_ERROR if the log has no step."""
    series = dict(zip(("step-time", "tflops-per-gpu"), _series(run), strict=True))
    values = series.get("step-time" if name == "default" else name)
    return mean(values) if values else METRIC_ERROR


def write_report(run: TestRun) -> Path:
    """Write the statistics of a run to `report.txt` next to its log, and return the path."""
    report = Path(run.output_path) / REPORT
    seconds, tflops = _series(run)
    log = Path(run.output_path) / LAUNCHER_LOG
    if not seconds:
        report.write_text(f"No step was found in {log}.\n", encoding="utf-8")
        return report
    parts: Mapping[str, list[float]] = {"Step Time (s)": seconds, "TFLOP/s per GPU": tflops}
    tables = [f"{title}\n{SeriesStatistics.of(series)}" for title, series in parts.items()]
    report.write_text("\n\n".join([f"Source log: {log}", *tables]) + "\n", encoding="utf-8")
    return report


def _series(run: TestRun) -> tuple[list[float], list[float]]:
    log = Path(run.output_path) / LAUNCHER_LOG
    return (
        extract_mbridge_metrics(log.read_text(encoding="utf-8", errors="ignore"))
        if log.is_file()
        else ([], [])
    )
