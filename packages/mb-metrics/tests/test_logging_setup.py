import logging

import pytest

from mb_metrics import LoggerConfig, configure_logging


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
