"""Command `watch`: the state of a run on a terminal, refreshed until the run is finished."""

import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mb_metrics.report.metric_names import MetricNames
from mb_metrics.report.run_reader import RunReader
from mb_metrics.watch import watch_frames, watch_text

_SIZE_WITHOUT_TERMINAL = (100, 30)


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
    console = Console(highlight=False, markup=False)
    frames = watch_frames(reader, seconds=seconds, size=shutil.get_terminal_size, plain=plain)
    try:
        with Live(console=console, auto_refresh=False) as live:
            for frame in frames:
                live.update(Text(frame, no_wrap=True, overflow="crop"), refresh=True)
    except KeyboardInterrupt:
        return


def can_encode_braille(encoding: str | None) -> bool:
    """Return whether an encoding contains the characters of a plot."""
    try:
        "\u2800\u28ff".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
