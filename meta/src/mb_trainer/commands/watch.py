"""`mb watch`."""

import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mb_metrics import RunReader, watch_frames, watch_text
from mb_trainer.commands.errors import reported

_BESIDE_A_TERMINAL = (100, 30)


def watch(run: Path, *, seconds: float) -> int:
    """Show a run until it is over or a key interrupts; without a terminal, print it once. Return the exit code."""

    def work() -> int:
        reader = RunReader(run)
        plain = not can_show_braille(sys.stdout.encoding)
        if sys.stdout.isatty():
            follow(reader, seconds=seconds, plain=plain)
        else:
            reader.poll()
            width, height = _BESIDE_A_TERMINAL
            print(watch_text(reader.run(), now=time.time(), width=width, height=height, plain=plain))
        return 0

    return reported(work)


def follow(reader: RunReader, *, seconds: float, plain: bool) -> None:
    """Draw the run anew every few seconds; the last drawing stays. An interrupt is the way to leave, no error."""
    console = Console(highlight=False, markup=False)
    frames = watch_frames(reader, seconds=seconds, size=shutil.get_terminal_size, plain=plain)
    try:
        with Live(console=console, auto_refresh=False) as live:
            for frame in frames:
                live.update(Text(frame, no_wrap=True, overflow="crop"), refresh=True)
    except KeyboardInterrupt:
        return


def can_show_braille(encoding: str | None) -> bool:
    """Say whether an encoding has the characters of a plot."""
    try:
        "\u2800\u28ff".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
