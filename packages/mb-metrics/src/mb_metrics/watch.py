"""Text display of a run for a terminal, once or refreshed while the run continues."""

import math
import time
from collections.abc import Callable, Iterator

from mb_metrics import names
from mb_metrics.report.formatting import duration, percent, short
from mb_metrics.report.html_tables import status_text
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.run_reader import RunReader
from mb_metrics.report.run_statistics import RunStatistics, RunStatus, compute_run_statistics
from mb_metrics.report.series import Series
from mb_metrics.report.text_plot import text_plot
from mb_metrics.report.time_split import KINDS, split_time
from mb_metrics.report.timeline import WORDS
from mb_metrics.run_events import RunEvent

FINISHED: frozenset[RunStatus] = frozenset({"complete", "stopped", "failed"})
_BAR = 24
_MOST_EVENTS = 4
_MOST_WARNINGS = 3


def watch_text(run: RunHistory, *, now: float, width: int = 80, height: int = 24, plain: bool = False) -> str:
    """Return the state of a run in lines of at most `width` characters: progress, loss, statistics, latest events.

    `now` is in seconds since the epoch. The plot takes the lines of `height` that the rest leaves. With `plain`, the
    text is ASCII.
    """
    return _frame(
        run,
        compute_run_statistics(run, now=now, split=split_time(run)),
        width=width,
        height=height,
        plain=plain,
    )


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

    A silent run is not treated as finished: it may be in a long step, or may be restarted. If reading is slow, the
    interval is extended to four times the duration of a read, which limits the load.

    Args:
        reader: Reader of the run.
        seconds: Interval between two texts, in seconds.
        size: Function that returns the columns and lines of the terminal.
        clock: Function that returns seconds since the epoch.
        sleep: Function that waits for a number of seconds.
        plain: ASCII only.
    """
    while True:
        begin = clock()
        reader.poll()
        run = reader.run()
        statistics = compute_run_statistics(run, now=begin)
        width, height = size()
        yield _frame(run, statistics, width=width, height=height, plain=plain)
        if statistics.status in FINISHED:
            return
        sleep(max(seconds, 4 * (clock() - begin)))


def _frame(run: RunHistory, statistics: RunStatistics, *, width: int, height: int, plain: bool) -> str:
    head = [f"{run.name}: {status_text(statistics)}", _progress(statistics), ""]
    tail = [*_statistics_lines(run, statistics), *_events(run), *_warnings(statistics)]
    name = next(iter(statistics.losses), None)
    plot: list[str] = []
    if name is not None:
        plot = text_plot(
            run.series[name], width=width, height=max(4, height - len(head) - len(tail) - 3), plain=plain
        )
        plot = [f"{name}: {_loss(statistics, name)}", *plot, ""]
    text = "\n".join(_fitted(line, width) for line in (*head, *plot, *tail))
    return text.encode("ascii", "replace").decode() if plain else text


def _fitted(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(width - 3, 0)] + "..."


def _progress(statistics: RunStatistics) -> str:
    step = statistics.steps or 0
    if statistics.total_steps is None:
        return f"step {step:,}"
    share = min(1.0, step / statistics.total_steps) if statistics.total_steps else 1.0
    filled = round(share * _BAR)
    left = f", {duration(statistics.seconds_left)} left" if statistics.seconds_left is not None else ""
    bar = "#" * filled + "." * (_BAR - filled)
    return f"step {step:,} of {statistics.total_steps:,} [{bar}] {percent(share)}{left}"


def _loss(statistics: RunStatistics, name: str) -> str:
    loss = statistics.losses[name]
    held_out = statistics.validation.get(names.find_validation(name, statistics.validation) or "")
    words = f"{short(loss.last)}, mean of the last {loss.recent_steps} {short(loss.recent_mean)}"
    if held_out is not None:
        words += f"; validation {short(held_out.last)}, best {short(held_out.lowest)} at step {held_out.lowest_step}"
    return words


def _statistics_lines(run: RunHistory, statistics: RunStatistics) -> list[str]:
    """Return the lines of statistics; unknown values are omitted."""
    step_time = statistics.step_seconds.median if statistics.step_seconds else None
    device = None if statistics.tokens_per_second else statistics.tokens_per_second_per_device
    speed = {
        "step time": duration(step_time),
        "tokens per second": short(statistics.tokens_per_second),
        "tokens per second and device": short(device),
        "TFLOP/s per device": short(statistics.tflops_per_device),
        "MFU": percent(statistics.mfu),
        "peak memory": short(max(statistics.peak_memory.values(), default=None)),
    }
    now = {
        "learning rate": short(_last(run.learning_rate)),
        "gradient norm": short(_last(run.grad_norm)),
        "batch size": short(_last(run.series.get(names.BATCH_SIZE))),
    }
    total = sum(statistics.seconds[kind] for kind in KINDS)
    spent = {
        WORDS[kind]: percent(statistics.seconds[kind] / total)
        for kind in KINDS
        if total and statistics.seconds[kind] > 0.0005 * total
    }
    counts = {
        "restarts": statistics.restarts,
        "skipped steps": statistics.skipped_steps,
        "NaN or infinite losses": statistics.nonfinite_steps,
    }
    trouble = {name: str(count) for name, count in counts.items() if count}
    parts = [
        {name: text for name, text in part.items() if text != "?"} for part in (speed, now, spent, trouble)
    ]
    return [", ".join(f"{name} {text}" for name, text in part.items()) for part in parts if part]


def _last(series: Series | None) -> float | None:
    return series.values[-1] if series else None


def _events(run: RunHistory) -> list[str]:
    return ["", *(_event(event) for event in run.events[-_MOST_EVENTS:])] if run.events else []


def _event(event: RunEvent) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.time)) if math.isfinite(event.time) else "        "
    words = event.kind + (f" at step {event.step:,}" if event.step is not None else "")
    words += f", {duration(event.seconds)}" if event.seconds is not None else ""
    reason = event.details.get("reason")
    return f"{at}  {words}" + (f" ({reason})" if reason else "")


def _warnings(statistics: RunStatistics) -> list[str]:
    return ["", *statistics.warnings[:_MOST_WARNINGS]] if statistics.warnings else []
