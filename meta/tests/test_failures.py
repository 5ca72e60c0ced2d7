"""Who tells an error when several processes fail."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mb_trainer.commands.errors import reported
from mb_trainer.failures import print_once


def torchrun_environment(folder, rank):
    (folder / str(rank)).mkdir()
    return {"TORCHELASTIC_ERROR_FILE": str(folder / str(rank) / "error.json")}


def test_under_torchrun_the_first_that_fails_tells_it(tmp_path, capsys):
    for rank in (2, 0, 1):
        print_once(f"rank {rank}", environment=torchrun_environment(tmp_path, rank), is_voice=rank == 1)
    assert capsys.readouterr().err == "error: rank 2\n"


def test_under_torchrun_processes_that_fail_at_once_tell_it_once(tmp_path, capsys):
    environments = [torchrun_environment(tmp_path, rank) for rank in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: print_once("no", environment=one, is_voice=False), environments))
    assert capsys.readouterr().err == "error: no\n"


@pytest.mark.parametrize("environment", [{}, {"TORCHELASTIC_ERROR_FILE": ""}])
def test_elsewhere_the_voice_tells_it(environment, capsys):
    print_once("quiet", environment=environment, is_voice=False)
    print_once("loud", environment=environment, is_voice=True)
    assert capsys.readouterr().err == "error: loud\n"


def test_the_one_that_loses_returns_only_after_the_other_has_spoken(tmp_path, monkeypatch):
    spoken = []

    class Slow:
        def write(self, text):
            time.sleep(0.05)
            spoken.append(text)

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stderr", Slow())
    environments = [torchrun_environment(tmp_path, rank) for rank in range(2)]

    def fail(environment):
        print_once("no", environment=environment, is_voice=False)
        return "".join(spoken)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fail, environments)) == ["error: no\n"] * 2


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
