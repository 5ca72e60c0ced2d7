"""State of a run folder: fresh, resumable, complete, or of another run."""

import errno
import json

import pytest
import yaml

from mb_models.weight_shapes import fixed_by_weights
from mb_trainer.run_folder import (
    EventLog,
    LastRow,
    RunFolder,
    RunFolderError,
    changes_since,
    checkpoints_in,
    describe,
    differences,
    last_row,
    own,
    rows,
    schedule_is_overridden,
    standing,
    why_unwritable,
    write_missing_stop,
)

CONFIG = {"train": {"train_iters": 20}, "checkpoint": {"save": "runs/a/checkpoints"}, "peft": None}


@pytest.mark.parametrize(("last_step", "expected"), [(None, "fresh"), (10, "resumable"), (20, "complete")])
def test_standing_follows_the_newest_checkpoint(last_step, expected):
    assert standing(last_step=last_step, train_iters=20) == expected


def test_other_checkpoints_are_gone_on_from_and_complete_nothing():
    assert standing(last_step=None, train_iters=20, more=True) == "resumable"
    assert standing(last_step=20, train_iters=20, more=True) == "complete"


@pytest.mark.parametrize(
    ("files", "inside"),
    [
        (["checkpoints/x", "run_config.yaml"], True),
        (["events.jsonl", "run_config.yaml"], True),
        (["events.jsonl", "run_config.yaml", "iter_0000001/x"], False),
        (["iter_0000001/x"], False),
        (["run_config.yaml", ".metadata"], False),
    ],
)
def test_the_checkpoints_of_a_run_are_inside(tmp_path, files, inside):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert checkpoints_in(tmp_path) == (tmp_path / "checkpoints" if inside else tmp_path)


def test_a_folder_that_cannot_be_reached_is_left_to_who_reads_it(tmp_path):
    unreachable = tmp_path / ("x" * 300)
    assert checkpoints_in(unreachable) == unreachable


def test_a_fresh_folder_has_no_other_settings(tmp_path):
    assert changes_since(RunFolder(tmp_path), CONFIG) == {}


@pytest.mark.parametrize("damaged", [b"train: [", b"", b"just words", b"\xff\xfe\x00"])
def test_settings_that_a_full_disk_or_a_kill_has_damaged_are_one_refusal(tmp_path, damaged):
    (tmp_path / "run_config.yaml").write_bytes(damaged)
    with pytest.raises(RunFolderError, match=r"run_config.yaml: cannot be read .*or remove it to go on"):
        changes_since(RunFolder(tmp_path), CONFIG)
    (tmp_path / "run_config.yaml").unlink()
    assert changes_since(RunFolder(tmp_path), CONFIG) == {}


def test_other_settings_are_described_each_with_both_values(tmp_path):
    folder = RunFolder(tmp_path)
    folder.run_config.write_text(yaml.safe_dump(CONFIG))
    changed = changes_since(folder, {**CONFIG, "train": {"train_iters": 30}})
    assert changed == {"train.train_iters": (20, 30)}
    assert "train.train_iters: 20 there, 30 now" in describe(folder, changed)
    assert "--resume-with-changes" in describe(folder, changed)


def test_a_run_that_was_resumed_with_changes_keeps_its_own_schedule_until_it_saves(tmp_path):
    folder = RunFolder(tmp_path)
    assert not schedule_is_overridden(folder)
    folder.run_config.write_text("scheduler: {override_opt_param_scheduler: true}")
    assert schedule_is_overridden(folder)
    folder.run_config.write_text(yaml.safe_dump(CONFIG))
    assert not schedule_is_overridden(folder)


def test_settings_that_stored_weights_depend_on_are_not_recommended_to_change(tmp_path):
    changed = {"model.hidden_size": (64, 128), "train.train_iters": (20, 30)}
    told = describe(RunFolder(tmp_path), changed, fixed=fixed_by_weights(changed))
    assert "model.hidden_size cannot be changed here" in told
    assert "--resume-with-changes" not in told


def test_differences_name_leaves_and_pass_over_what_the_folder_places():
    saved = {"a": {"b": 1, "c": [1]}, "checkpoint": {"save": "x"}, "gone": 3}
    wanted = {"a": {"b": 2, "c": [1]}, "checkpoint": {"save": "y"}, "new": {"d": 4}}
    assert differences(saved, wanted) == {"a.b": (1, 2), "gone": (3, None), "new.d": (None, 4)}


def test_a_field_that_an_earlier_version_did_not_have_is_no_difference_at_its_default():
    saved = {"train": {"train_iters": 20}, "peft": None, "profiling": None}
    wanted = {
        "train": {"train_iters": 20, "new": 1, "other": 2},
        "peft": {"dim": 32},
        "profiling": {"record_shapes": False},
    }
    assert differences(saved, wanted, chosen={"train": {"train_iters": 20, "other": 2}, "peft": {}}) == {
        "train.other": (None, 2),
        "peft.dim": (None, 32),
    }


def test_events_are_json_lines_with_their_time(tmp_path):
    events = EventLog(tmp_path / "events.jsonl", clock=lambda: 7.0)
    events.write("start", step=0)
    events.write("save", step=10)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert lines == [{"event": "start", "time": 7.0, "step": 0}, {"event": "save", "time": 7.0, "step": 10}]


@pytest.mark.parametrize(
    ("written", "appended"),
    [
        ([("start", 0), ("save", 10)], True),
        ([("start", 0), ("stop", 20)], False),
        ([("start", 0), ("stop", 20), ("resume", 20)], True),
        ([], False),
    ],
)
def test_the_stop_of_a_run_whose_processes_died_is_written_once(tmp_path, written, appended):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 12, "time": 6.0}\n')
    log = EventLog(folder.events, clock=lambda: 7.0)
    for event, step in written:
        log.write(event, step=step)
    for _ in range(2):
        write_missing_stop(folder, message="rank 1 was killed by SIGKILL", clock=lambda: 9.0)
    stop = {
        "event": "stop",
        "time": 9.0,
        "step": 12,
        "reason": "failed",
        "message": "rank 1 was killed by SIGKILL",
    }
    assert list(rows(folder.events))[len(written) :] == ([stop] if appended else [])


def test_the_last_whole_row_is_found_behind_one_that_a_kill_has_cut(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "time": 5.0}\n{"step": 2, "time": 6.0}\n{"step": 3, "ti')
    assert last_row(metrics) == LastRow(step=2, time=6.0)
    assert last_row(tmp_path / "none.jsonl") is None


def test_a_folder_that_cannot_be_written_is_known_before_it_is_made(tmp_path):
    (tmp_path / "file").touch()
    assert why_unwritable(RunFolder(tmp_path / "file" / "run")) == (
        "the run folder cannot be written (Not a directory)"
    )
    assert why_unwritable(RunFolder(tmp_path / "new" / "run")) is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_second_trainer_is_kept_out_until_the_first_has_ended(tmp_path):
    with (
        own(RunFolder(tmp_path)),
        pytest.raises(RunFolderError, match="another trainer"),
        own(RunFolder(tmp_path), patience=0),
    ):
        pass
    with own(RunFolder(tmp_path)):
        pass


def test_a_run_folder_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def no_locks(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with own(RunFolder(tmp_path)), own(RunFolder(tmp_path)):
        assert tmp_path.is_dir()
