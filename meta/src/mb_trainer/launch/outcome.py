"""What CloudAI reads of a log: whether a run succeeded, and its figures."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Protocol

LAUNCHER_LOG = "cloudai_megatron_bridge_launcher.log"
REPORT = "report.txt"
METRIC_ERROR = -1.0
"""Value of a metric that cannot be told."""

KEPT = 10
"""Steps at the end of a run that count: the first ones warm up."""

SHOWN = 40
"""Lines at the end of a log that explain a failure."""

_STEP = re.compile(
    r"Step Time\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*s.*?GPU utilization:\s*([0-9]+(?:\.[0-9]+)?)\s*(?:MODEL_)?TFLOP/s/GPU",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatusResult:
    """Whether a run did what it was started for."""

    is_successful: bool
    """True where the log holds a finished step."""
    error_message: str = ""
    """What is wrong, empty where nothing is."""


class HasOutput(Protocol):
    """A test run, as far as its log goes."""

    @property
    def output_path(self) -> Path:
        """Folder that the launcher wrote to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One series of figures, summed up."""

    avg: float
    median: float
    min: float
    max: float
    std: float
    """Standard deviation of the whole series (not of a sample)."""

    @classmethod
    def of(cls, series: list[float]) -> "Figures":
        """Sum up a series that is not empty."""
        return cls(
            avg=mean(series), median=median(series), min=min(series), max=max(series), std=pstdev(series)
        )

    def __str__(self) -> str:
        return "\n".join(f"  {name}: {getattr(self, name)}" for name in self.__slots__)


def extract_mbridge_metrics(logs: str) -> tuple[list[float], list[float]]:
    """Return the seconds and the TFLOP/s for each GPU of the last ten steps that a log tells of."""
    steps = [found.groups() for found in map(_STEP.search, logs.splitlines()) if found is not None][-KEPT:]
    return [float(seconds) for seconds, _ in steps], [float(tflops) for _, tflops in steps]


def was_run_successful(run: HasOutput) -> JobStatusResult:
    """Say whether a run finished a step; the exit code does not count."""
    log = Path(run.output_path) / LAUNCHER_LOG
    if not log.is_file():
        return JobStatusResult(
            is_successful=False, error_message=f"There is no {LAUNCHER_LOG} in {run.output_path}."
        )
    text = log.read_text(encoding="utf-8", errors="ignore")
    if extract_mbridge_metrics(text)[0]:
        return JobStatusResult(is_successful=True)
    return JobStatusResult(is_successful=False, error_message="\n".join(text.splitlines()[-SHOWN:]))


def metric_of_run(run: HasOutput, name: str = "default") -> float:
    """Return a metric: "step-time" or "default" in seconds, "tflops-per-gpu"; METRIC_ERROR where it cannot be told."""
    series = dict(zip(("step-time", "tflops-per-gpu"), _series(run), strict=True))
    found = series.get("step-time" if name == "default" else name)
    return mean(found) if found else METRIC_ERROR


def write_report(run: HasOutput) -> Path:
    """Write the figures of a run to `report.txt` beside its log, and return the path."""
    report = Path(run.output_path) / REPORT
    seconds, tflops = _series(run)
    log = Path(run.output_path) / LAUNCHER_LOG
    if not seconds:
        report.write_text(f"No step was found in {log}.\n")
        return report
    parts: Mapping[str, list[float]] = {"Step Time (s)": seconds, "TFLOP/s per GPU": tflops}
    tables = [f"{title}\n{Figures.of(series)}" for title, series in parts.items()]
    report.write_text("\n\n".join([f"Source log: {log}", *tables]) + "\n")
    return report


def _series(run: HasOutput) -> tuple[list[float], list[float]]:
    log = Path(run.output_path) / LAUNCHER_LOG
    return (
        extract_mbridge_metrics(log.read_text(encoding="utf-8", errors="ignore"))
        if log.is_file()
        else ([], [])
    )
