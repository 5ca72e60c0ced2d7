"""Recording that environment variables request."""

from pathlib import Path

import pytest

from mb_verify import (
    KillAfterCheckpoint,
    Recorder,
    RecordFile,
    RecordingRequest,
    RunStart,
    callbacks_from_environment,
    record_file_from_environment,
)
from mb_verify.errors import RecordingRequestError

RECORD = {"MB_VERIFY_RECORD": "records/a"}
KILL = {**RECORD, "MB_VERIFY_KILL_AFTER": "3", "MB_VERIFY_TRACKER": "run/latest.txt"}


def test_nothing_is_recorded_without_a_request():
    assert callbacks_from_environment({"MB_VERIFY_START": "1"}) == []
    assert record_file_from_environment({}) is None


def test_a_request_makes_a_recorder_and_a_kill_a_second_callback():
    assert [type(each) for each in callbacks_from_environment(RECORD)] == [Recorder]
    assert [type(each) for each in callbacks_from_environment(KILL)] == [Recorder, KillAfterCheckpoint]
    assert isinstance(record_file_from_environment(RECORD), RecordFile)


def test_the_environment_of_a_start_is_its_request():
    start = RunStart(
        run=Path("interrupted"), record=Path("records/interrupted"), number=2, processes=1, kill_after=3
    )
    tracker = Path("interrupted/latest.txt")
    expected = RecordingRequest(folder=start.record, start=2, kill_after=3, tracker=tracker)
    assert RecordingRequest.from_environment(start.environment(tracker=tracker)) == expected
    assert RecordingRequest.from_environment(RECORD) == RecordingRequest(folder=Path("records/a"))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({**RECORD, "MB_VERIFY_START": "first"}, "MB_VERIFY_START: 'first' is not a number"),
        (
            {**RECORD, "MB_VERIFY_KILL_AFTER": "3"},
            "MB_VERIFY_TRACKER: is not set, and MB_VERIFY_KILL_AFTER=3",
        ),
        (
            {**RECORD, "MB_VERIFY_VALUES": "losses"},
            "MB_VERIFY_VALUES: 'losses' is unknown. Set it to 'results'",
        ),
    ],
)
def test_malformed_requests_are_rejected(variables, message):
    with pytest.raises(RecordingRequestError, match=message):
        callbacks_from_environment(variables)


def test_only_the_last_rank_kills_itself(tmp_path, monkeypatch):
    killed = []
    monkeypatch.setattr("os.kill", lambda _process, signal: killed.append(signal))
    (tmp_path / "latest.txt").write_text("3")
    variables = {
        **KILL,
        "MB_VERIFY_RECORD": str(tmp_path),
        "MB_VERIFY_TRACKER": str(tmp_path / "latest.txt"),
    }
    for rank in (0, 1):
        _, kill = callbacks_from_environment(variables, rank=rank, world_size=2)
        kill.on_train_step_start(Context(step=4))
        assert len(killed) == rank == (tmp_path / "killed").is_file()


class Context:
    """Argument of the events of a loop: the number of completed steps."""

    def __init__(self, step):
        self.state = self.train_state = self
        self.step = step
