"""Output of a run: only the logging rank prints on the console; log.txt contains everything."""

import io
import logging
import warnings

from mb_metrics import LoggerConfig
from mb_trainer.console import Voice


def test_the_voice_speaks_and_logs(tmp_path):
    screen = io.StringIO()
    voice = Voice(stream=screen)
    voice.open_log(tmp_path / "log.txt")
    voice.say("step 1 [not markup]")
    voice.close()
    assert screen.getvalue() == (tmp_path / "log.txt").read_text() == "step 1 [not markup]\n"


def test_other_ranks_only_log_and_say_who_they_are(tmp_path):
    screen = io.StringIO()
    voice = Voice(rank=2, speaks=False, stream=screen)
    voice.open_log(tmp_path / "log.txt")
    voice.say("a warning")
    assert screen.getvalue() == ""
    assert (tmp_path / "log.txt").read_text() == "[rank 2] a warning\n"


def test_no_bar_in_a_pipe():
    screen = io.StringIO()
    voice = Voice(stream=screen)
    with voice.progress("tokenizing", 10) as bar:
        bar.update(5)
    assert screen.getvalue() == ""


def test_a_line_is_printed_when_it_is_whole():
    screen = io.StringIO()
    voice = Voice(stream=screen)
    voice.write("half a ")
    assert screen.getvalue() == ""
    voice.write("line\nand more")
    assert screen.getvalue() == "half a line\n"
    voice.close()
    assert screen.getvalue() == "half a line\nand more\n"


def test_what_was_said_before_the_log_was_opened_is_in_it(tmp_path):
    voice = Voice(stream=io.StringIO())
    voice.say("early")
    voice.open_log(tmp_path / "log.txt")
    voice.log("only here")
    voice.close()
    assert (tmp_path / "log.txt").read_text() == "early\nonly here\n"


def test_warnings_of_other_ranks_are_only_logged(tmp_path, recwarn):
    voice = Voice(rank=1, speaks=False, stream=io.StringIO())
    voice.open_log(tmp_path / "log.txt")
    with voice.warnings_logged():
        warnings.warn("a planted warning", UserWarning, stacklevel=1)
    assert "UserWarning: a planted warning" in (tmp_path / "log.txt").read_text()
    assert len(recwarn) == 0


def test_records_of_loggers_are_logged_and_own_warnings_are_said(tmp_path):
    stream = io.StringIO()
    voice = Voice(stream=stream)
    voice.open_log(tmp_path / "log.txt")
    with voice.records_logged(LoggerConfig(filter_warnings=False)):
        logging.getLogger("megatron.core").warning("foreign")
        logging.getLogger("mb_metrics").error("metrics were lost")
    logging.getLogger("mb_metrics").info("after the block")
    assert stream.getvalue() == "error: metrics were lost\n"
    log = (tmp_path / "log.txt").read_text()
    assert log == "megatron.core: warning: foreign\nerror: metrics were lost\n"
