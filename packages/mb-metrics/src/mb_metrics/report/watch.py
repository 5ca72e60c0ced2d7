"""Text display of a run for a terminal, once or refreshed while the run continues."""

import math
import time
from collections.abc import Callable, Iterator, Sequence

from mb_metrics import names
from mb_metrics.report.formatting import duration, percent, short
from mb_metrics.report.incremental_statistics import IncrementalStatistics
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.run_reader import RunReader
from mb_metrics.report.run_statistics import RunStatistics, RunStatus, peak_memory_text, status_text
from mb_metrics.report.series import Series
from mb_metrics.report.text_plot import text_plot
from mb_metrics.report.time_split import KINDS
from mb_metrics.report.timeline import WORDS
from mb_metrics.run.events import RunEvent

FINISHED: frozenset[RunStatus] = frozenset({"complete", "stopped", "failed"})
_SHORTEST_BAR = 5
_COLUMN = 20
"""Fewest characters of a column of statistics."""
_MOST_EVENTS = 4
_MOST_ANOMALIES = 3
_MOST_WARNINGS = 3


def watch_text(run: RunHistory, *, now: float, width: int = 80, height: int = 24, plain: bool = False) -> str:
    """Return the state of a run in lines of at most `width` characters: progress, loss, statistics, latest events.

    `now` is in seconds since the epoch. The plot takes the lines of `height` that the rest leaves. With `plain`, the
    text is ASCII.
    """
    statistics = IncrementalStatistics().compute(run, now=now)
    return _frame(run, statistics, _GrowingPlot(), width=width, height=height, plain=plain)


def watch_frames(
    reader: RunReader,
    *,
    seconds: float = 2.0,
    size: Callable[[], tuple[int, int]],
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    plain: bool = False,
) -> Iterator[str]:
    """Yield the text of a run at intervals, until the run is finished.

    A silent run is not treated as finished: it may be in a long step, or may be restarted. A text costs the rows that
    are new, and all of them after a restart of the run. If reading is slow, the interval is extended to four times the
    duration of a read, which limits the load.

    Args:
        reader: Reader of the run.
        seconds: Interval between two texts, in seconds.
        size: Function that returns the columns and lines of the terminal.
        clock: Function that returns seconds since the epoch.
        sleep: Function that waits for a number of seconds.
        plain: ASCII only.
    """
    incremental, plot = IncrementalStatistics(), _GrowingPlot()
    while True:
        begin = clock()
        reader.poll()
        run = reader.run()
        statistics = incremental.compute(run, now=begin)
        width, height = size()
        yield _frame(run, statistics, plot, width=width, height=height, plain=plain)
        if statistics.status in FINISHED:
            return
        sleep(max(seconds, 4 * (clock() - begin)))


class _GrowingPlot:
    """Plot of a series, which is drawn again once the series has grown by half a column."""

    def __init__(self) -> None:
        self._drawn: tuple[Series, int, int, int, bool] | None = None
        self._length = 0
        self._lines: list[str] = []

    def lines(self, series: Series, *, width: int, height: int, plain: bool) -> list[str]:
        """Return the lines; see `text_plot`."""
        wanted = series, series.cuts, width, height, plain
        same = self._drawn is not None and self._drawn[0] is series and self._drawn[1:] == wanted[1:]
        if not same or 2 * width * (len(series) - self._length) > self._length:
            self._lines = text_plot(series, width=width, height=height, plain=plain)
            self._drawn, self._length = wanted, len(series)
        return self._lines


def _frame(
    run: RunHistory, statistics: RunStatistics, drawn: _GrowingPlot, *, width: int, height: int, plain: bool
) -> str:
    head = [f"{run.name}: {status_text(statistics)}", _progress(statistics, width=width, plain=plain), ""]
    tail = _grid(_cells(run, statistics), width=width)
    newest = statistics.anomalies[-_MOST_ANOMALIES:]
    for part in (
        [f"! step {anomaly.step:,}: {anomaly.text}" for anomaly in newest],
        [_event(event) for event in run.events[-_MOST_EVENTS:]],
        statistics.warnings[:_MOST_WARNINGS],
    ):
        tail += ["", *part] if part else []
    name = next(iter(statistics.losses), None)
    plot: list[str] = []
    if name is not None:
        room = max(4, height - len(head) - len(tail) - 3)
        plot = [name, *drawn.lines(run.series[name], width=width, height=room, plain=plain), ""]
    text = "\n".join(_fitted(line, width) for line in (*head, *plot, *tail))
    return text.encode("ascii", "replace").decode() if plain else text


def _fitted(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(width - 3, 0)] + "..."


def _progress(statistics: RunStatistics, *, width: int, plain: bool) -> str:
    step, total = statistics.steps or 0, statistics.total_steps
    if total is None:
        return f"step {step:,}"
    share = min(1.0, step / total) if total else 1.0
    begin = f"step {step:,} of {total:,}  "
    eta = f"  ETA {duration(statistics.seconds_left)}" if statistics.seconds_left is not None else ""
    end = f"  {percent(share)}{eta}"
    bar = max(_SHORTEST_BAR, width - len(begin) - len(end))
    filled = round(share * bar)
    done, rest = ("#", ".") if plain else ("\u2588", "\u2591")
    return f"{begin}{done * filled}{rest * (bar - filled)}{end}"


def _grid(rows: Sequence[Sequence[str]], *, width: int) -> list[str]:
    """Return the cells of each row below each other, in columns of equal width; long cells take several columns."""
    columns = max(1, width // _COLUMN)
    wide = width // columns
    lines: list[str] = []
    for row in rows:
        line, used = "", 0
        for cell in row:
            needed = min(columns, -(-(len(cell) + 1) // wide))
            if used + needed > columns:
                lines.append(line.rstrip())
                line, used = "", 0
            line, used = line + cell.ljust(needed * wide), used + needed
        if line:
            lines.append(line.rstrip())
    return lines


def _cells(run: RunHistory, statistics: RunStatistics) -> list[list[str]]:
    """Return rows of statistics; unknown values are left out."""
    memory = max(statistics.peak_memory.values(), default=None)
    step_time = statistics.step_seconds.median if statistics.step_seconds else None
    device = None if statistics.tokens_per_second else statistics.tokens_per_second_per_device
    speed = {
        "step": duration(step_time),
        "tok/s": short(statistics.tokens_per_second),
        "tok/s/device": short(device),
        "predicted tok/s/device": short(statistics.predicted_tokens_per_second_per_device),
        "TFLOP/s": short(statistics.tflops_per_device),
        "MFU": percent(statistics.mfu),
        "memory": "?" if memory is None else peak_memory_text(statistics),
    }
    settings = {
        "lr": run.learning_rate,
        "grad norm": run.grad_norm,
        "batch": run.series.get(names.BATCH_SIZE),
    }
    newest = {name: short(series.last) for name, series in settings.items() if series is not None}
    total = sum(statistics.seconds[kind] for kind in KINDS)
    spent = {
        WORDS[kind].partition(" ")[0]: percent(statistics.seconds[kind] / total)
        for kind in KINDS
        if total and statistics.seconds[kind] > 0.0005 * total
    }
    counts = {
        "restarts": statistics.restarts,
        "skipped": statistics.skipped_steps,
        "NaN": statistics.nonfinite_steps,
    }
    trouble = {name: str(count) for name, count in counts.items() if count}
    rows = (_losses(statistics), speed, newest, spent, trouble)
    cells = [[f"{name} {text}" for name, text in row.items() if text != "?"] for row in rows]
    return [row for row in cells if row]


def _losses(statistics: RunStatistics) -> dict[str, str]:
    name = next(iter(statistics.losses), None)
    if name is None:
        return {}
    loss = statistics.losses[name]
    cells = {"loss": short(loss.last), f"mean of {loss.recent_steps}": short(loss.recent_mean)}
    held_out = statistics.validation.get(names.find_validation(name, statistics.validation) or "")
    if held_out is not None:
        cells["validation"] = short(held_out.last)
        cells["best"] = f"{short(held_out.lowest)} at {held_out.lowest_step}"
    return cells


def _event(event: RunEvent) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.time)) if math.isfinite(event.time) else "        "
    step = "" if event.step is None else f"step {event.step:,}"
    took = "" if event.seconds is None else duration(event.seconds)
    reason = event.details.get("reason")
    return f"{at}  {event.kind:<12}{step:<14}{took:<12}{reason or ''}".rstrip()
