"""Python's logging in a run: levels and filters of a `LoggerConfig`, and records in the output of a rank."""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from mb_metrics.config import LoggerConfig
from mb_metrics.errors import MetricsError

OWN_LOGGERS = ("mb_",)
_LEVEL = "MEGATRON_LOGGING_LEVEL"


class LoggingLevelError(MetricsError, ValueError):
    """Error raised when the logging level in the environment is not a number."""

    bad_input = True


def configure_logging(
    config: LoggerConfig,
    *,
    root: logging.Logger | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Set levels and filters. Call it once, after handlers are added to the root logger.

    The level is `logging_level`, else the environment variable MEGATRON_LOGGING_LEVEL (a number), else INFO. It is set
    on the root logger and, with `set_level_for_all_loggers`, on every existing logger. The handlers of the root logger
    drop records of `modules_to_filter` and, with `filter_warnings`, records of level WARNING from loggers outside the
    trainer (a logger belongs to the trainer if its name starts with "mb_").

    Raises:
        LoggingLevelError: the level in the environment is not a number.
    """
    environment = os.environ if environment is None else environment
    root = root or logging.getLogger()
    level = config.logging_level if config.logging_level is not None else _level_of(environment)
    root.setLevel(level)
    if config.set_level_for_all_loggers:
        for name in list(root.manager.loggerDict):
            logging.getLogger(name).setLevel(level)
    dropped = tuple(config.modules_to_filter or ())

    def passes(record: logging.LogRecord) -> bool:
        if any(record.name == name or record.name.startswith(f"{name}.") for name in dropped):
            return False
        is_foreign_warning = record.levelno == logging.WARNING and not record.name.startswith(OWN_LOGGERS)
        return not (config.filter_warnings and is_foreign_warning)

    for handler in root.handlers:
        handler.addFilter(passes)


def _level_of(environment: Mapping[str, str]) -> int:
    text = environment.get(_LEVEL, str(logging.INFO))
    try:
        return int(text)
    except ValueError as error:
        raise LoggingLevelError(
            f"{_LEVEL}: not a logging level ({text!r}). Levels are numbers: 10 for DEBUG, 20 for INFO, 30 for "
            "WARNING. Set a number, or set logger.logging_level."
        ) from error


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
