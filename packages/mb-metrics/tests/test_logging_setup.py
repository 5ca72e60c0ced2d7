"""Levels and filters of logging, and records and warnings in the output of a rank."""

import logging
import warnings

import pytest

from mb_metrics import LoggerConfig, configure_logging
from mb_metrics.run.logging_setup import captured_records, captured_warnings


@pytest.fixture
def root():
    """A logger with a handler that stores records, used instead of the root logger."""
    logger = logging.Logger("a root of its own")
    logger.manager = logging.Manager(logger)
    logger.seen = []
    handler = logging.Handler()
    handler.emit = lambda record: logger.seen.append((record.name, record.levelno))
    logger.addHandler(handler)
    return logger


def send(root, *names, level=logging.WARNING):
    for name in names:
        root.handle(logging.LogRecord(name, level, "", 0, "text", (), None))
    return [name for name, _ in root.seen]


def test_external_warnings_are_dropped_and_own_ones_stay(root):
    configure_logging(LoggerConfig(), root=root)
    assert send(root, "mb_checkpoint.load.load", "torch.something") == ["mb_checkpoint.load.load"]
    assert send(root, "torch.something", level=logging.ERROR)[-1] == "torch.something"


def test_warnings_stay_when_configured(root):
    configure_logging(LoggerConfig(filter_warnings=False), root=root)
    assert send(root, "torch.something") == ["torch.something"]


def test_modules_are_dropped_with_what_is_below_them(root):
    configure_logging(LoggerConfig(modules_to_filter=["a.b"]), root=root)
    assert send(root, "a.b", "a.b.c", "a.bc", "a", level=logging.ERROR) == ["a.bc", "a"]


@pytest.mark.parametrize(
    ("config", "environment", "level"),
    [
        (LoggerConfig(), {}, logging.INFO),
        (LoggerConfig(), {"MEGATRON_LOGGING_LEVEL": "10"}, logging.DEBUG),
        (LoggerConfig(logging_level=40), {"MEGATRON_LOGGING_LEVEL": "10"}, logging.ERROR),
    ],
)
def test_the_level_is_that_of_the_configuration_then_of_the_environment(root, config, environment, level):
    configure_logging(config, root=root, environment=environment)
    assert root.level == level


def test_every_logger_when_configured(root):
    logger = logging.getLogger("mb_metrics.of_this_test")
    root.manager.loggerDict["mb_metrics.of_this_test"] = logger
    configure_logging(LoggerConfig(logging_level=10), root=root)
    assert logger.level == logging.NOTSET
    configure_logging(LoggerConfig(logging_level=10, set_level_for_all_loggers=True), root=root)
    assert logger.level == logging.DEBUG


def test_a_level_that_is_not_a_number_is_rejected(root):
    with pytest.raises(ValueError, match=r"not a logging level \('debug'\)"):
        configure_logging(LoggerConfig(), root=root, environment={"MEGATRON_LOGGING_LEVEL": "debug"})


class Output:
    """Output in memory."""

    def __init__(self):
        self.console, self.logged = [], []

    def print(self, text):
        self.console.append(text)
        self.log(text)

    def log(self, text):
        self.logged.append(text)


def test_warnings_are_only_logged(recwarn):
    output = Output()
    with captured_warnings(output):
        warnings.warn("a planted warning", UserWarning, stacklevel=1)
    assert "UserWarning: a planted warning" in output.logged[0]
    assert (output.console, len(recwarn)) == ([], 0)


def test_records_of_loggers_are_logged_and_warnings_of_the_trainer_are_printed():
    output = Output()
    with captured_records(output, LoggerConfig(filter_warnings=False)):
        logging.getLogger("megatron.core").warning("foreign")
        logging.getLogger("mb_metrics").error("metrics were lost")
    logging.getLogger("mb_metrics").info("after the block")
    assert output.console == ["error: metrics were lost"]
    assert output.logged == ["megatron.core: warning: foreign", "error: metrics were lost"]
