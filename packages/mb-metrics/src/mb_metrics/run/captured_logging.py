"""Records of Python's loggers, and Python's warnings, in the output of a rank."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from mb_metrics.config import LoggerConfig
from mb_metrics.run.logging_setup import OWN_LOGGERS, configure_logging


class RankOutput(Protocol):
    """Output of a rank: a console, and a log that receives everything."""

    def print(self, text: str, /) -> object:
        """Print a line, and log it."""

    def log(self, text: str, /) -> object:
        """Write lines to the log only."""


@contextmanager
def captured_records(output: RankOutput, settings: LoggerConfig) -> Iterator[None]:
    """Log the records of Python's loggers while the block runs, and print warnings of the trainer's packages.

    Levels and filters are set as by `configure_logging`.

    Raises:
        LoggingLevelError: the level in the environment is not a number.
    """
    root, handler = logging.getLogger(), _OutputHandler(output)
    level = root.level
    root.addHandler(handler)
    try:
        configure_logging(settings)
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@contextmanager
def captured_warnings(output: RankOutput) -> Iterator[None]:
    """Write Python's warnings to the log instead of stderr while the block runs."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *position: Any, **rest: Any) -> None:
        output.log(warnings.formatwarning(message, category, *position[:2]))

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


class _OutputHandler(logging.Handler):
    def __init__(self, output: RankOutput) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Print records of the trainer's own packages from level WARNING on, and write the others to the log."""
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if record.levelno >= logging.WARNING and record.name.startswith(OWN_LOGGERS):
            self._output.print(text)
        else:
            self._output.log(f"{record.name}: {text}")
