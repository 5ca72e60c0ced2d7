"""Loggers and warnings in the output of a rank."""

import logging
import warnings

from mb_metrics import LoggerConfig
from mb_metrics.run.logging_setup import captured_records, captured_warnings


class Output:
    """Output in memory."""

    def __init__(self):
        self.console, self.logged = [], []

    def print(self, text):
        """Keep a line of the console."""
        self.console.append(text)
        self.log(text)

    def log(self, text):
        """Keep lines of the log."""
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
