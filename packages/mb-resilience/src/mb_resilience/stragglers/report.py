"""Report on the speed of ranks, as text and as metrics. Standard library only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpeed:
    """Measurements of one rank since the last report."""

    rank: int
    work_seconds: float
    """Time in the timed sections, per step."""
    data_seconds: float | None = None
    """Time waiting for data, per step; None if this rank reads no data, or reading is not timed."""
    backward_seconds: float | None = None
    """Time in backward passes, per step; None if they are not timed."""
    teraflops: float | None = None
    """Estimated TFLOP/s in the timed sections; None if the number of operations is unknown."""
    device: Mapping[str, float] = field(default_factory=dict)
    """Device telemetry by name: "temperature" (°C), "power" (W), "utilization" (%), "clock" (MHz)."""


UNITS: Mapping[str, str] = {"temperature": "°C", "power": "W", "utilization": "%", "clock": "MHz"}
"""Unit of each telemetry value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedReport:
    """Measurements of all ranks that have any, at least one, ordered by rank; identical on all ranks."""

    ranks: Sequence[RankSpeed]
    minmax_count: int = 1
    """Number of slowest and fastest ranks to list."""
    locations: Sequence[str] = ()
    """Host and device of each rank of the run; empty if they are unknown."""

    @property
    def by_speed(self) -> list[RankSpeed]:
        """Ranks, slowest first: by the time of their work and backward passes."""
        return sorted(self.ranks, key=lambda each: -(each.work_seconds + (each.backward_seconds or 0.0)))

    @property
    def slowest(self) -> RankSpeed:
        """Rank with the longest time of work and backward passes."""
        return self.by_speed[0]

    @property
    def fastest(self) -> RankSpeed:
        """Rank with the shortest time of work and backward passes."""
        return self.by_speed[-1]

    def lines(self) -> list[str]:
        """Return a line with the minimum and maximum of each value, and a second line if `minmax_count` exceeds 1."""
        pieces = [
            self._range("work", lambda each: 1000 * each.work_seconds, "ms"),
            self._range("backward", lambda each: _times(1000, each.backward_seconds), "ms"),
            self._range("data", lambda each: _times(1000, each.data_seconds), "ms"),
            self._range("speed", lambda each: each.teraflops, "TFLOP/s"),
            *(self._range(name, _of_device(name), unit) for name, unit in UNITS.items()),
        ]
        if self.locations and len(self.ranks) > 1:
            pieces.append(f"slowest: rank {self.slowest.rank} on {self.locations[self.slowest.rank]}")
        report_lines = ["speed of ranks, min to max: " + " | ".join(filter(None, pieces))]
        if 1 < self.minmax_count < len(self.ranks):
            order = self.by_speed
            slow, fast = order[: self.minmax_count], order[: -self.minmax_count - 1 : -1]
            report_lines.append(
                f"slowest {self.minmax_count}: {_listed(slow)} | fastest {self.minmax_count}: {_listed(fast)}"
            )
        return report_lines

    def metrics(self) -> dict[str, float]:
        """Return the report as metrics, by names such as "straggler/work-ms-max"."""
        metrics = {
            "straggler/slowest-rank": float(self.slowest.rank),
            "straggler/work-ms-min": 1000 * min(each.work_seconds for each in self.ranks),
            "straggler/work-ms-max": 1000 * max(each.work_seconds for each in self.ranks),
        }
        backward = [each.backward_seconds for each in self.ranks if each.backward_seconds is not None]
        if backward:
            metrics["straggler/backward-ms-max"] = 1000 * max(backward)
        waits = [each.data_seconds for each in self.ranks if each.data_seconds is not None]
        if waits:
            metrics["straggler/data-ms-max"] = 1000 * max(waits)
        speeds = [each.teraflops for each in self.ranks if each.teraflops is not None]
        if speeds:
            metrics |= {"straggler/tflops-min": min(speeds), "straggler/tflops-max": max(speeds)}
        return metrics

    def _range(self, label: str, value: Callable[[RankSpeed], float | None], unit: str) -> str | None:
        """Return "work 1.00 (rank 0) to 2.00 ms (rank 1)"; None if no rank has the value."""
        measured = [(number, each.rank) for each in self.ranks if (number := value(each)) is not None]
        if not measured:
            return None
        (least, low), (most, high) = min(measured), max(measured, key=lambda pair: (pair[0], -pair[1]))
        return f"{label} {least:.2f} (rank {low}) to {most:.2f} {unit} (rank {high})"


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _of_device(name: str) -> Callable[[RankSpeed], float | None]:
    return lambda each: each.device.get(name)


def _listed(ranks: Sequence[RankSpeed]) -> str:
    return ", ".join(f"rank {each.rank} ({1000 * each.work_seconds:.2f} ms)" for each in ranks)
