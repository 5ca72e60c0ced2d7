import pytest

from mb_metrics.errors import DamagedRunFileError
from mb_metrics.sinks.tracker_run import TrackerRun, TrackerRunFile


def test_a_run_is_found_again_by_a_resumed_job(tmp_path):
    path = tmp_path / "run" / "wandb_run.json"
    run = TrackerRun(id="abc", last_step=70, names={"acc%": "acc_"})
    TrackerRunFile(path).write(run)
    resumed = TrackerRunFile(path, resume_step=60)
    assert resumed.read() == run
    assert resumed.repeated_steps(run) == range(61, 71)
    assert [file.name for file in path.parent.iterdir()] == ["wandb_run.json"]


@pytest.mark.parametrize("resume_step", [0, -1])
def test_a_job_from_the_start_is_a_new_run(tmp_path, resume_step):
    TrackerRunFile(tmp_path / "x").write(TrackerRun(id="abc"))
    assert TrackerRunFile(tmp_path / "x", resume_step=resume_step).read() is None


def test_without_a_resume_step_the_run_continues_and_no_step_is_repeated(tmp_path):
    file = TrackerRunFile(tmp_path / "x")
    assert file.read() is None
    file.write(TrackerRun(id="abc", last_step=7))
    assert file.read() == TrackerRun(id="abc", last_step=7)
    assert not file.repeated_steps(TrackerRun(id="abc", last_step=7))
    assert not TrackerRunFile(tmp_path / "x", resume_step=9).repeated_steps(TrackerRun(id="abc", last_step=7))


def test_without_a_file_nothing_is_stored():
    file = TrackerRunFile(None, resume_step=3)
    file.write(TrackerRun(id="abc"))
    assert file.read() is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "7", "[" * 100_000, '{"id": "a", "last_step": "x"}', '{"id": "a", "names": 1}'],
)
def test_a_damaged_file_is_an_error(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(DamagedRunFileError, match="contains no run id"):
        TrackerRunFile(tmp_path / "x").read()


@pytest.mark.parametrize(
    ("last_step", "resume_step", "every", "message"),
    [
        (7, 9, 1, "lacks steps 8 to 9"),
        (None, 9, 1, "lacks steps 1 to 9"),
        (10, 25, 10, "lacks steps 20 to 25"),
        (8, 9, 1, "MlflowSink: the tracker lacks step 9, "),
        (10, 19, 10, None),
        (9, 9, 1, None),
        (12, 9, 1, None),
        (7, None, 1, None),
        (7, 0, 1, None),
    ],
)
def test_steps_that_a_killed_process_has_not_sent_are_reported(
    tmp_path, caplog, last_step, resume_step, every, message
):
    """metrics.jsonl has them, and the trackers, which receive them in the background, never will."""
    TrackerRunFile(tmp_path / "mlflow_run.json").write(TrackerRun(id="abc", last_step=last_step))
    TrackerRunFile(tmp_path / "mlflow_run.json", resume_step=resume_step).warn_of_missing_steps(
        "MlflowSink", every=every
    )
    assert (message in caplog.text) if message else not caplog.text
