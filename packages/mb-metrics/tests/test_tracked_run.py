import pytest

from mb_metrics.tracked_run import RunFile, TrackedRun


def test_a_run_is_found_again_by_a_resumed_job(tmp_path):
    path = tmp_path / "run" / "wandb_run.json"
    run = TrackedRun(id="abc", last_step=70)
    RunFile(path).remember(run)
    resumed = RunFile(path, resume_step=60)
    assert resumed.found() == run
    assert resumed.superseded(run) == range(61, 71)
    assert [file.name for file in path.parent.iterdir()] == ["wandb_run.json"]


@pytest.mark.parametrize("resume_step", [0, -1])
def test_a_job_from_the_start_is_a_new_run(tmp_path, resume_step):
    RunFile(tmp_path / "x").remember(TrackedRun(id="abc"))
    assert RunFile(tmp_path / "x", resume_step=resume_step).found() is None


def test_without_a_resume_step_the_run_goes_on_and_nothing_is_superseded(tmp_path):
    file = RunFile(tmp_path / "x")
    assert file.found() is None
    file.remember(TrackedRun(id="abc", last_step=7))
    assert file.found() == TrackedRun(id="abc", last_step=7)
    assert not file.superseded(TrackedRun(id="abc", last_step=7))
    assert not RunFile(tmp_path / "x", resume_step=9).superseded(TrackedRun(id="abc", last_step=7))


def test_without_a_file_nothing_is_remembered():
    file = RunFile(None, resume_step=3)
    file.remember(TrackedRun(id="abc"))
    assert file.found() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "7"])
def test_a_damaged_file_is_no_new_run(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(ValueError, match="holds no run id"):
        RunFile(tmp_path / "x").found()
