"""Command `watch`: the state of a run on a terminal, refreshed until the run is finished."""

import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.live import Live
from rich.text import Text
from rich.theme import Theme

from mb_metrics.report.metric_names import MetricNames
from mb_metrics.report.run_reader import RunReader
from mb_metrics.report.watch import watch_frames, watch_text

_SIZE_WITHOUT_TERMINAL = (100, 30)


class WatchColours(RegexHighlighter):
    """Colours of the text of a run."""

    base_style = "watch."
    highlights = (
        r"\A(?P<name>.*?): (?:(?P<good>running|complete|finished)|(?P<bad>(?:failed|not closed|no stop).*)"
        r"|(?P<other>.*))",
        r"(?P<chart>[\u2800-\u28ff\u2588]+)",
        r"(?P<quiet>\u2591+)",
        r"(?m)^(?P<bad>! step .*)$",
        r"(?m)^(?P<quiet>\d\d:\d\d:\d\d)  (?P<event>\w+)",
        r"(?P<quiet>\b(?:loss|mean of \d+|validation|best|step|(?:predicted )?tok/s(?:/device)?|TFLOP/s|MFU|memory|lr"
        r"|grad norm|batch|training|evaluating|saving|starting|other)) (?=[\d.-])",
        r"(?P<bad>\b(?:restarts|skipped|NaN|lost)) (?=\d)",
        r"(?P<eta>ETA .*)",
    )


_THEME = Theme(
    {
        "watch.name": "bold",
        "watch.good": "green",
        "watch.bad": "bold red",
        "watch.other": "yellow",
        "watch.chart": "cyan",
        "watch.quiet": "bright_black",
        "watch.event": "blue",
        "watch.eta": "bold",
    }
)


def watch(run: Path, *, seconds: float, metric_names: MetricNames) -> None:
    """Display a run until it is finished or interrupted; if stdout is not a terminal, print its state once.

    Raises:
        RunNotFoundError: there is no run at the path.
        MetricNotRecordedError: metrics were recorded, and none of a requested name.
    """
    reader = RunReader(run, metric_names=metric_names)
    plain = not can_encode_braille(sys.stdout.encoding)
    if sys.stdout.isatty():
        _follow(reader, seconds=seconds, plain=plain)
    else:
        reader.poll()
        width, height = _SIZE_WITHOUT_TERMINAL
        print(watch_text(reader.run(), now=time.time(), width=width, height=height, plain=plain))


def _follow(reader: RunReader, *, seconds: float, plain: bool) -> None:
    """Refresh the text at intervals. The last text remains; an interrupt ends the display without an error."""
    console, colours = Console(highlight=False, markup=False, theme=_THEME), WatchColours()
    frames = watch_frames(reader, seconds=seconds, size=shutil.get_terminal_size, plain=plain)
    try:
        with Live(console=console, auto_refresh=False) as live:
            for frame in frames:
                text = Text(frame, no_wrap=True, overflow="crop")
                colours.highlight(text)
                live.update(text, refresh=True)
    except KeyboardInterrupt:
        return


def can_encode_braille(encoding: str | None) -> bool:
    """Return whether an encoding contains the characters of a plot."""
    try:
        "\u2800\u28ff".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
