import sys
from pathlib import Path

import pytest

from mb_verify import RunStart, run_start_command
from mb_verify.errors import VerificationError

START = {"run": Path("runs/interrupted"), "record": Path("records/interrupted"), "number": 1, "processes": 1}
KILLS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a program as a start; `saved` is the step of its newest checkpoint."""

    def run_program(program, *, saved=None, **options):
        tracker, lines = tmp_path / "latest.txt", []
        if saved is not None:
            tracker.write_text(str(saved))
        command = [sys.executable, "-c", program]
        run_start_command(RunStart(**START, **options), command, tracker=tracker, log=lines.append)
        return lines

    return run_program


def test_a_start_that_ends_in_order_is_logged(run):
    (line,) = run("")
    assert line.startswith("interrupted run, start 2: done, ")


def test_a_start_that_is_killed_after_its_checkpoint_is_logged(run):
    assert run(KILLS_ITSELF, saved=6, kill_after=6) == ["interrupted run, start 2: killed after step 6, 0 s"]


def test_a_signal_that_a_launcher_reports_counts_as_a_kill(run):
    program = "import sys; sys.exit('rank 1 was killed by SIGKILL')"
    assert run(program, saved=6, kill_after=6) == ["interrupted run, start 2: killed after step 6, 0 s"]


def test_a_rank_that_fails_because_its_partner_was_killed_counts_as_a_kill(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records/interrupted").mkdir(parents=True)
    program = "import pathlib, sys; pathlib.Path('records/interrupted/killed').touch(); sys.exit('connection reset')"
    assert run(program, saved=6, kill_after=6) == ["interrupted run, start 2: killed after step 6, 0 s"]


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        ("import sys; sys.exit('no room')", {}, r"start 2: failed with exit code 1.*\nno room"),
        (KILLS_ITSELF, {"saved": 5, "kill_after": 6}, "exit code -9"),
        (KILLS_ITSELF, {"kill_after": 6}, "exit code -9"),
        ("import sys; sys.exit(3)", {"saved": 6, "kill_after": 6}, "exit code 3"),
        ("", {"saved": 6, "kill_after": 6}, "ended before the checkpoint of step 6 was complete"),
    ],
    ids=[
        "fails",
        "killed too early",
        "killed without a checkpoint",
        "fails after its checkpoint",
        "not killed",
    ],
)
def test_other_ends_are_failures(run, program, options, message):
    with pytest.raises(VerificationError, match=message):
        run(program, **options)


def test_a_kill_without_a_tracker_is_an_error():
    with pytest.raises(VerificationError, match="no tracker to wait for"):
        run_start_command(RunStart(**START, kill_after=6), [sys.executable, "-c", ""])


def test_the_command_receives_the_request_of_its_start_and_no_older_one(run, monkeypatch):
    monkeypatch.setenv("MB_VERIFY_KILL_AFTER", "3")
    program = (
        "import os, sys, mb_verify; sys.exit(str(mb_verify.RecordingRequest.from_environment(os.environ)))"
    )
    with pytest.raises(
        VerificationError, match=r"'records/interrupted'\), start=1, kill_after=None, tracker=.*latest.txt"
    ):
        run(program)
