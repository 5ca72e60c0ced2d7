"""Settings of a run that resumes without its run folder: those of its checkpoint are compared."""

import json
import shutil

import pytest
from runs import train_here

from mb_trainer.errors import RunFolderError

CHANGED = "optimizer.clip_grad=0.25"


class Builds:
    """Callback that counts the runs that began to build their parts."""

    count = 0

    def on_data_init_start(self, context):
        self.count += 1


@pytest.fixture(scope="module")
def words(overrides):
    return [*overrides, "train.train_iters=4", "checkpoint.save_interval=2", "validation.eval_iters=0"]


@pytest.fixture(scope="module")
def first(words, tmp_path_factory):
    """Return a folder of checkpoints of a run that stopped after step 2, outside of its run folder."""
    base = tmp_path_factory.mktemp("first")
    assert (
        train_here([*words, f"checkpoint.save={base}/saved", "train.exit_interval=2"], base / "run").step == 2
    )
    return base / "saved"


@pytest.fixture
def base(first, tmp_path):
    """Return a folder with a copy of the checkpoints."""
    shutil.copytree(first, tmp_path / "saved")
    return tmp_path


def first_event(out):
    return json.loads((out / "events.jsonl").read_text().splitlines()[0])


def test_another_run_folder_on_the_same_checkpoints_is_compared_with_them(words, base):
    saved, builds = f"checkpoint.save={base}/saved", Builds()
    out = base / "other"
    with pytest.raises(RunFolderError) as refused:
        train_here([*words, saved, CHANGED], out, callbacks=(builds,))
    assert str(refused.value).splitlines() == [
        f"{base}/saved/iter_0000002: holds a run with other settings, and resuming would mix the two.",
        "  optimizer.clip_grad: 1.0 there, 0.25 now",
        "Choose other folders with --out and checkpoint.save, or resume with the new settings with "
        "--resume-with-changes.",
    ]
    assert (builds.count, out.exists()) == (0, False)
    outcome = train_here([*words, saved, CHANGED], out, resume_with_changes=True)
    assert (outcome.step, outcome.reason) == (4, "finished")
    assert first_event(out)["changes"] == {"optimizer.clip_grad": [1.0, 0.25]}


def test_equal_settings_resume_in_another_run_folder(words, base):
    outcome = train_here([*words, f"checkpoint.save={base}/saved"], base / "other")
    assert (outcome.step, outcome.reason) == (4, "finished")
    assert first_event(base / "other")["event"] == "resume"
    assert "changes" not in first_event(base / "other")


def test_a_lost_run_config_is_replaced_by_that_of_the_checkpoint(words, base):
    train_here([*words, f"checkpoint.save={base}/saved", "train.exit_interval=3"], base / "run")
    (base / "run" / "run_config.yaml").unlink()
    with pytest.raises(RunFolderError, match=r"train\.global_batch_size: 8 there, 16 now"):
        train_here([*words, f"checkpoint.save={base}/saved", "train.global_batch_size=16"], base / "run")


def test_a_newest_checkpoint_with_damaged_settings_is_passed_over(words, base):
    newer = base / "saved" / "iter_0000003"
    newer.mkdir()
    (newer / "run_config.yaml").write_text("model: [")
    with pytest.raises(RunFolderError, match="iter_0000002: holds a run with other settings"):
        train_here([*words, f"checkpoint.save={base}/saved", CHANGED], base / "other")


def test_a_run_folder_is_compared_with_the_checkpoints_of_another_run_that_it_would_resume(words, base):
    """The file in the folder describes the checkpoints of its own run."""
    train_here([*words, CHANGED, "train.exit_interval=1"], base / "second")
    with pytest.raises(
        RunFolderError, match=r"iter_0000002: holds .*\n  optimizer\.clip_grad: 1\.0 there, 0\.25"
    ):
        train_here([*words, CHANGED, f"checkpoint.save={base}/saved"], base / "second")


def test_weights_of_another_run_are_no_resume(words, base, capfd):
    """Neither as initial weights, nor with `finetune`, nor for an evaluation."""
    for number, more in enumerate(
        [
            [f"checkpoint.pretrained_checkpoint={base}/saved"],
            [f"checkpoint.load={base}/saved", "checkpoint.finetune=true"],
        ]
    ):
        out = base / str(number)
        assert train_here([*words, CHANGED, *more, "train.exit_interval=1"], out).step == 1
        assert first_event(out)["event"] == "start"
    evaluation = ["validation.skip_train=true", "validation.eval_iters=1", f"checkpoint.save={base}/saved"]
    assert train_here([*words, CHANGED, *evaluation], base / "evaluation").reason == "skip_train"
    assert "has other settings" not in capfd.readouterr().out


def test_a_run_that_branches_off_reports_what_differs(words, base, capfd):
    more = [f"checkpoint.load={base}/saved", "train.exit_interval=3"]
    assert train_here([*words, CHANGED, *more], base / "branch").step == 3
    reported = capfd.readouterr().out
    assert (
        f"checkpoint.load: the run of {base}/saved/iter_0000002 has other settings. Those of this run apply:\n"
        "  optimizer.clip_grad: 1.0 there, 0.25 now" in reported
    )


def test_a_run_whose_folder_is_deleted_is_compared_with_its_storage(words, tmp_path):
    """Before anything is fetched."""
    out, builds = tmp_path / "run", Builds()
    words = [*words, f"checkpoint.storage={tmp_path}/storage"]
    assert train_here([*words, "train.exit_interval=2"], out).saved
    shutil.rmtree(out)
    with pytest.raises(RunFolderError) as refused:
        train_here([*words, CHANGED], out, callbacks=(builds,))
    message = str(refused.value).splitlines()
    assert message[0].startswith(f"{tmp_path}/storage/iter_0000002.")
    assert message[1:] == [
        "  optimizer.clip_grad: 1.0 there, 0.25 now",
        "Choose another URL with checkpoint.storage, or resume with the new settings with --resume-with-changes.",
    ]
    assert (builds.count, out.exists()) == (0, False)
    assert train_here([*words, CHANGED], out, resume_with_changes=True).step == 4
    assert first_event(out)["changes"] == {"optimizer.clip_grad": [1.0, 0.25]}
