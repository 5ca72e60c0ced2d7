"""What a person sees: lines on the console and in log.txt, progress bars on a terminal, the summary at the end."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mb_metrics import LoggerConfig, configure_logging
from mb_metrics.logging_setup import OWN_LOGGERS


class Voice:
    """Text of one rank: to the console if this rank speaks for all, and always to log.txt once there is one.

    It is a text stream (`write`, `flush`), so that metrics print through it. On a terminal, lines are printed above
    the progress bar that is showing; elsewhere there is no bar.
    """

    def __init__(self, *, rank: int = 0, speaks: bool = True, stream: TextIO | None = None) -> None:
        self.rank = rank
        self.speaks = speaks
        self._console = Console(file=stream or sys.stdout, highlight=False, markup=False, soft_wrap=True)
        self._log: TextIO | None = None
        self._unlogged: list[str] = []
        self._line = ""

    def open_log(self, path: Path) -> None:
        """Append to a file what was said so far and everything from here on.

        Lines of ranks that do not speak carry their rank.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = path.open("a", buffering=1)
        for line in self._unlogged:
            self._log.write(line)
        self._unlogged = []

    def say(self, text: str) -> None:
        """Print one line."""
        self.write(f"{text}\n")

    def write(self, text: str) -> int:
        """Take text, and print it when its line is whole: a bar is only drawn between lines."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._put(line)
        return len(text)

    def flush(self) -> None:
        """Do nothing: whole lines are printed at once."""

    def close(self) -> None:
        """Print what is left of a line, and close the log file."""
        if self._line:
            self.write("\n")
        if self._log is not None:
            self._log.close()
            self._log = None

    def log(self, text: str) -> None:
        """Write lines to the log file only, or keep them for it."""
        for line in text.splitlines():
            prefix = "" if self.speaks else f"[rank {self.rank}] "
            if self._log is not None:
                self._log.write(f"{prefix}{line}\n")
            else:
                self._unlogged.append(f"{prefix}{line}\n")

    def _put(self, line: str) -> None:
        if self.speaks:
            self._console.print(line)
        self.log(line)

    @contextmanager
    def warnings_logged(self) -> Iterator[None]:
        """While the block runs, put Python's warnings of a rank that does not speak into the log, not on stderr."""
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
            self.log(warnings.formatwarning(message, category, *place[:2]))

        if not self.speaks:
            warnings.showwarning = show
        try:
            yield
        finally:
            warnings.showwarning = before

    @contextmanager
    def records_logged(self, settings: LoggerConfig) -> Iterator[None]:
        """While the block runs, put records of Python's loggers into the log; own warnings also on the console.

        Raises:
            mb_metrics.logging_setup.LoggingLevelError: the level in the environment is no number.
        """
        root, handler = logging.getLogger(), VoiceHandler(self)
        level = root.level
        root.addHandler(handler)
        try:
            configure_logging(settings)
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)

    @contextmanager
    def progress(self, label: str, total: int, *, done: int = 0) -> Iterator["Bar"]:
        """Show a bar while the block runs, if this rank speaks and the console is a terminal."""
        if not (self.speaks and self._console.is_terminal):
            yield Bar()
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            yield Bar(progress=progress, task=progress.add_task(label, total=total, completed=done))


class VoiceHandler(logging.Handler):
    """Hands records of Python's loggers to a voice."""

    def __init__(self, voice: Voice) -> None:
        super().__init__()
        self._voice = voice

    def emit(self, record: logging.LogRecord) -> None:
        """Say warnings and worse of the trainer's own packages, and log the rest."""
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if record.levelno >= logging.WARNING and record.name.startswith(OWN_LOGGERS):
            self._voice.say(text)
        else:
            self._voice.log(f"{record.name}: {text}")


@dataclass(frozen=True, slots=True)
class Bar:
    """A progress bar, or nothing where none is shown."""

    progress: Progress | None = None
    task: int = 0

    def update(self, done: int, *, total: int | None = None, label: str | None = None) -> None:
        """Move the bar to `done`, with another total or label if given."""
        if self.progress is not None:
            self.progress.update(self.task, completed=done, total=total, description=label)  # type: ignore[arg-type]
