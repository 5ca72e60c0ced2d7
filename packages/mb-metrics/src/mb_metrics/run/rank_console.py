"""Text output of the ranks of a run: console lines of one rank, a log file of all ranks, and progress bars.

Requires rich, of the extra `mb-metrics[cli]`.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO, cast

from rich import console as rich_console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from mb_metrics.sinks.append_file import LineFile
from mb_metrics.sinks.terminal import Style, StyledText

_COLOURS: dict[Style, str] = {
    "plain": "",
    "label": "bright_black",
    "main": "bold cyan",
    "speed": "green",
    "problem": "bold red",
    "evaluation": "blue",
}

_COLUMNS_WITHOUT_TERMINAL = 120
ConsoleStyle = Literal["auto", "short", "megatron"]
"""Value of `LoggerConfig.console`."""


class RankOfWorld(Protocol):
    """Rank of this process."""

    @property
    def rank(self) -> int:
        """Rank."""

    @property
    def is_logging_rank(self) -> bool:
        """True if this rank prints."""


class LineStream:
    """Text stream that passes each complete line to a function.

    Args:
        print_line: Receives a line without its end.
    """

    def __init__(self, print_line: Callable[[str], object]) -> None:
        self._print_line = print_line
        self._rest = ""

    def write(self, text: str) -> int:
        """Buffer text and print complete lines: a progress bar is only redrawn between lines."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._print_line(line)
        return len(text)

    def flush(self) -> None:
        """Do nothing: complete lines are printed at once."""


class RankConsole(LineStream):
    """Text output of one rank: on the console if this rank logs for all, and in log.txt once it is open.

    A text stream (`write`, `flush`), so that metrics print through it. On a terminal, lines are printed above the
    visible progress bar; elsewhere no bar is rendered. If the log cannot be written, as on a full disk, one warning is
    printed to stderr, and the run continues: see `LineFile`. The same holds for a console that cannot be written, such
    as a pipe whose reader has ended: see `FaultTolerantStream`.

    Args:
        rank: Rank of this process.
        is_logging_rank: If True, this rank prints.
        stream: The console; None: standard output.
        style: `console` of a `LoggerConfig`. With "auto", `is_short` is True on a terminal.
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        is_logging_rank: bool = True,
        stream: TextIO | None = None,
        style: ConsoleStyle = "megatron",
    ) -> None:
        super().__init__(self._print_and_log)
        self.rank = rank
        self.is_logging_rank = is_logging_rank
        output = stream or sys.stdout
        file = None if output is None else FaultTolerantStream(output, warn=self.log)
        self._terminal = rich_console.Console(
            file=cast("TextIO | None", file), highlight=False, markup=False, soft_wrap=True
        )
        self.is_short = style == "short" or (style == "auto" and self._terminal.is_terminal)
        """True: the console has lines for people, and Megatron's lines and other details are in the log only."""
        self._log: LineFile | None = None
        self._unlogged: list[str] = []

    @classmethod
    def of(cls, world: RankOfWorld, *, style: ConsoleStyle) -> "RankConsole":
        """Return the console of this rank."""
        return cls(rank=world.rank, is_logging_rank=world.is_logging_rank, style=style)

    @property
    def columns(self) -> int:
        """Current width of the terminal; 120 if there is none."""
        return self._terminal.width if self._terminal.is_terminal else _COLUMNS_WITHOUT_TERMINAL

    def print_styled(self, pieces: Sequence[StyledText]) -> None:
        """Print one line on the console only, coloured on a terminal and cut to its width."""
        if self.is_logging_rank:
            line = Text.assemble(*((text, _COLOURS[style]) for text, style in pieces))
            line.truncate(self.columns)
            self._terminal.print(line)

    def detail(self, text: str) -> None:
        """Print a line of detail: to the log only, if the console has short lines."""
        (self.log if self.is_short else self.print)(text)

    def open_log(self, path: Path) -> None:
        """Append all output so far and all further output to a file.

        Lines of ranks other than the logging rank carry their rank.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = LineFile(path, warn=lambda text: self._print_error(f"warning: {text}"))
        self._log.append(*self._unlogged)
        self._unlogged = []

    def print(self, text: str) -> None:
        """Print one line."""
        self.write(f"{text}\n")

    def _print_and_log(self, line: str) -> None:
        if self.is_logging_rank:
            self._terminal.print(line)
        self.log(line)

    def close(self) -> None:
        """Print the rest of an incomplete line, and close the log file."""
        if self._rest:
            self.write("\n")
        if self._log is not None:
            self._log.close()
            self._log = None

    def log(self, text: str) -> None:
        """Write lines to the log file only, or buffer them until it is open."""
        prefix = "" if self.is_logging_rank else f"[rank {self.rank}] "
        lines = [f"{prefix}{line}" for line in text.splitlines()]
        if self._log is not None:
            self._log.append(*lines)
        else:
            self._unlogged += lines

    @property
    def details(self) -> LineStream:
        """Stream of lines of detail, for sinks."""
        return LineStream(self.detail)

    def alert(self, text: str) -> None:
        """Print a text of this rank to stderr and to the log, whichever rank logs for all."""
        self._print_error(text)
        self.log(text)

    def _print_error(self, text: str) -> None:
        if sys.stderr is not None:
            stream = FaultTolerantStream(sys.stderr, warn=self.log)
            stream.write(f"{text}\n")
            stream.flush()

    @contextmanager
    def progress(self, label: str, total: int, *, done: int = 0) -> Iterator["Bar"]:
        """Show a progress bar while the block runs, if this rank logs and the console is a terminal."""
        if not (self.is_logging_rank and self._terminal.is_terminal):
            yield Bar()
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._terminal, transient=True) as progress:
            yield Bar(progress=progress, task=progress.add_task(label, total=total, completed=done))


class FaultTolerantStream:
    """Text stream that is replaced by the null device when it cannot be written.

    Its reader has ended, its disk is full, or it is closed: a run that ended there would lose its steps. The null
    device takes the place of the stream's file descriptor, so that other code, which prints to it, does not fail.

    Args:
        stream: The stream.
        warn: Receives one message when it is replaced.
    """

    def __init__(self, stream: TextIO, *, warn: Callable[[str], object]) -> None:
        self._stream = stream
        self._warn = warn
        self._is_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, and return its length."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._attempt(self._stream.flush)

    def _attempt(self, work: Callable[[], object]) -> None:
        if self._is_lost:
            return
        try:
            work()
        except (OSError, ValueError) as error:  # ValueError: it is closed
            if isinstance(error, UnicodeError):
                raise
            self._is_lost = True
            name = str(getattr(self._stream, "name", "stream")).strip("<>")
            with suppress(OSError, ValueError), Path(os.devnull).open("w", encoding="utf-8") as null:
                os.dup2(null.fileno(), self._stream.fileno())
            reason = getattr(error, "strerror", None) or str(error)
            self._warn(
                f"warning: {name}: {reason.lower()}; the run continues, and its output is in the log only"
            )


@dataclass(frozen=True, slots=True)
class Bar:
    """Progress bar, and the callback that advances it after each step; without effect where none is shown."""

    progress: Progress | None = None
    task: int = 0

    @property
    def callbacks(self) -> list["Bar"]:
        """The bar; none where no bar is shown."""
        return [] if self.progress is None else [self]

    def on_train_step_end(self, context: Any) -> None:
        """Advance to the finished step."""
        self.update(context.state.train_state.step)

    def update(self, done: int, *, total: int | None = None, label: str | None = None) -> None:
        """Set the bar to `done`, and its total or label if given."""
        if self.progress is not None:
            self.progress.update(self.task, completed=done, total=total, description=label)  # type: ignore[arg-type]
