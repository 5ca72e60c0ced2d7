import os
import signal

import pytest

from mb_schema.signal_handlers import discard_output, install, put_back


@pytest.fixture
def previous():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield handlers
    put_back(handlers)


def test_the_previous_handlers_are_put_back(previous):
    received = []
    replaced = install([*previous, *previous], lambda number, frame: received.append(number))
    signal.raise_signal(signal.SIGUSR2)
    put_back(replaced)
    assert (received, replaced) == ([signal.SIGUSR2], previous)
    assert {number: signal.getsignal(number) for number in previous} == previous


def test_a_signal_that_cannot_be_caught_changes_no_handler(previous):
    with pytest.raises(OSError):
        install([*previous, signal.SIGKILL], signal.SIG_IGN)
    assert {number: signal.getsignal(number) for number in previous} == previous


def test_a_handler_that_was_not_installed_from_python_becomes_the_default(previous):
    install(previous, signal.SIG_IGN)
    put_back(dict.fromkeys(previous))
    assert {signal.getsignal(number) for number in previous} == {signal.SIG_DFL}


def test_discarded_output_is_in_no_file(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        os.write(file.fileno(), b"a")
        discard_output([file.fileno()])
        os.write(file.fileno(), b"b")
    assert (tmp_path / "out").read_bytes() == b"a"
