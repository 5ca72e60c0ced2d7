"""`ckpt_step`: applies until the run that started from it has saved a newer checkpoint."""

import pytest

from mb_checkpoint import CheckpointConfig
from mb_checkpoint.load.ckpt_step import release_ckpt_step, start_fields

STARTED = {"event": "resume", "step": 6, "ckpt_step": 6, "load": "run"}
SAVED = {"event": "save", "step": 9}


def released(*events, **fields):
    """Return `ckpt_step` and the folder that the run loads from after these events."""
    section = CheckpointConfig(**{"ckpt_step": 6, "load": "run", "save": "run"} | fields)
    message = release_ckpt_step(section, events=events)
    assert (message is None) == (section.ckpt_step is not None)
    return section.ckpt_step, section.load


@pytest.mark.parametrize(
    ("events", "step"),
    [
        ((), 6),
        ((SAVED, {"event": "stop", "step": 9}), 6),  # saved before step 6 was requested
        ((STARTED,), 6),
        ((STARTED, {"event": "save", "step": 6}), 6),
        ((STARTED, SAVED), None),
        ((STARTED, SAVED, {"event": "resume", "step": 9}, {"event": "stop", "step": 9}), None),
        ((STARTED, SAVED, STARTED | {"ckpt_step": 3, "step": 3}), 6),  # started from another step since
        ((STARTED, SAVED, STARTED), 6),
        ((STARTED | {"load": "other"}, SAVED), 6),
    ],
)
def test_the_step_applies_until_a_newer_one_is_saved(events, step):
    assert released(*events) == (step, "run")


def test_the_run_resumes_from_its_own_checkpoints_if_the_step_is_in_another_folder():
    assert released(STARTED | {"load": "base"}, SAVED, load="base") == (None, "run")
    assert released(STARTED | {"load": "base"}, load="base") == (6, "base")


def test_one_folder_may_be_spelled_in_several_ways(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for load in ("./base/", str(tmp_path / "base"), "other/../base"):
        assert released(STARTED | {"load": "base"}, SAVED, load=load) == (None, "run")
        fields = start_fields(CheckpointConfig(ckpt_step=6, load=load))
        assert fields == {"ckpt_step": 6, "load": str(tmp_path / "base")}


def test_weights_for_fine_tuning_remain_where_they_are():
    assert released(STARTED, SAVED, finetune=True) == (6, "run")
    assert start_fields(CheckpointConfig(load="run", ckpt_step=6, finetune=True)) == {}


def test_the_message_names_both_steps_and_the_folder():
    section = CheckpointConfig(ckpt_step=6, load="base", save="run")
    assert release_ckpt_step(section, events=[STARTED | {"load": "base"}, SAVED]) == (
        "checkpoint.ckpt_step=6: this run started from that step and has saved step 9 since, so it resumes from its "
        "newest checkpoint. To start from step 6 again, use another folder: --out=NEW checkpoint.load=base."
    )


def test_a_run_that_started_from_another_folder_resumes_from_its_own_checkpoints(tmp_path):
    section = CheckpointConfig(load=str(tmp_path / "other"), save=str(tmp_path / "run"))
    start = {"event": "resume", "step": 10, **start_fields(section)}
    assert release_ckpt_step(section, events=[start]) is None
    message = release_ckpt_step(section, events=[start, {"event": "save", "step": 12}])
    assert section.load == section.save
    assert message.endswith(
        "To start from " + str(tmp_path / "other") + " again, use another folder: --out=NEW."
    )


def test_a_run_that_loads_where_it_saves_has_no_fields():
    assert start_fields(CheckpointConfig(load="run", save="./run")) == {}
    assert start_fields(CheckpointConfig(load="other")) == {}


@pytest.mark.parametrize("damaged", [{}, {"step": None}, {"step": "x"}, {"step": []}])
def test_a_save_without_a_step_does_not_count(damaged):
    section = CheckpointConfig(load="base", save="run", ckpt_step=4)
    start = {"event": "start", "ckpt_step": 4, "load": "base"}
    assert release_ckpt_step(section, events=[start, {"event": "save", **damaged}]) is None
