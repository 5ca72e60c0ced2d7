"""Request to measure a run, as environment variables, so that any trainer is measured without an option. No torch.

| variable | meaning |
|---|---|
| `MB_BENCH_RESULT` | file that receives the result; without it nothing is measured |
| `MB_BENCH_STEPS` | measured steps |
| `MB_BENCH_WARMUP` | steps before them |
| `MB_BENCH_PROFILED` | steps after them in which calls are counted; 0: none |
| `MB_BENCH_TRACE` | file for the trace of these steps on rank 0, with stacks, for `mb_metrics.bench.kernels` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from mb_metrics.errors import MetricsError

PREFIX = "MB_BENCH_"
RESULT, STEPS, WARMUP, PROFILED, TRACE = (
    f"{PREFIX}{name}" for name in ("RESULT", "STEPS", "WARMUP", "PROFILED", "TRACE")
)
DEFAULT_WARMUP, DEFAULT_PROFILED = 5, 2


class BenchRequestError(MetricsError, ValueError):
    """Error raised for an environment variable that is not a number of steps."""

    bad_input = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """Steps that a run measures, and the file of the result."""

    result: Path
    steps: int
    warmup: int = DEFAULT_WARMUP
    """Steps before the measurement, in which kernels are compiled and graphs captured."""
    profiled: int = DEFAULT_PROFILED
    """Steps after the measurement, in which calls are counted: the profiler would slow down measured ones."""
    trace: Path | None = None
    """File that receives the trace of the profiled steps on rank 0."""

    @property
    def length(self) -> int:
        """Steps of the run."""
        return self.warmup + self.steps + self.profiled

    def variables(self) -> dict[str, str]:
        """Return the environment variables that pass the request to a process."""
        values = {RESULT: self.result, STEPS: self.steps, WARMUP: self.warmup, PROFILED: self.profiled}
        texts = {name: str(value) for name, value in values.items()}
        return texts if self.trace is None else {**texts, TRACE: str(self.trace)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> BenchRequest | None:
        """Return the request of an environment; None if nothing is to be measured.

        Raises:
            BenchRequestError: a number of steps is malformed or missing.
        """
        result = environment.get(RESULT)
        if not result:
            return None
        return cls(
            result=Path(result),
            steps=_number(STEPS, environment, least=1),
            warmup=_number(WARMUP, environment, default=DEFAULT_WARMUP),
            profiled=_number(PROFILED, environment, default=DEFAULT_PROFILED),
            trace=Path(environment[TRACE]) if environment.get(TRACE) else None,
        )


def bench_callbacks(environment: Mapping[str, str]) -> list[object]:
    """Return the callback that measures this process; none unless the environment requests it.

    Raises:
        BenchRequestError: a number of steps is malformed or missing.
    """
    request = BenchRequest.from_environment(environment)
    if request is None:
        return []
    return [import_module("mb_metrics.bench.recorder").BenchRecorder(**asdict(request))]  # imports torch


def _number(name: str, environment: Mapping[str, str], *, least: int = 0, default: int | None = None) -> int:
    text = environment.get(name) or (None if default is None else str(default))
    if text is None or not text.isdecimal() or int(text) < least:
        raise BenchRequestError(
            f"{name}: must be a number of steps, at least {least} ({text!r}), because {RESULT} is set and the run is "
            f"measured. Set {name}, or unset {RESULT}."
        )
    return int(text)
