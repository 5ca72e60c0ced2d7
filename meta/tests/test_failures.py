"""Errors of the operating system: one message for an inaccessible path, a traceback for other errors."""

import pytest

from mb_launch.ranks.failures import read_failures
from mb_trainer.commands.errors import reported


def test_a_path_that_cannot_be_used_is_one_message(tmp_path, capsys):
    def read():
        (tmp_path / ("x" * 300)).read_text()

    assert reported(read, environment={}) == 2
    assert "xxx: cannot be used (File name too long). Name another path" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device", "file"), PermissionError("no path")]
)
def test_other_errors_of_the_system_keep_their_traceback(error):
    def work():
        raise error

    with pytest.raises(type(error)):
        reported(work, environment={})


def test_an_interrupt_of_one_rank_is_recorded_for_its_launcher(tmp_path):
    def work():
        raise KeyboardInterrupt

    environment = {"MB_ERROR_FOLDER": str(tmp_path), "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    assert reported(work, environment=environment) == 130
    (failure,) = read_failures(tmp_path)
    assert (failure.rank, failure.text.splitlines()[-1]) == (1, "KeyboardInterrupt")
