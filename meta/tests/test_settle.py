"""Preparation of a job before the model is built: environment variables and paths."""

from pathlib import Path

import pytest

from mb_checkpoint.errors import CheckpointFolderError
from mb_config import ConfigError, Provenance
from mb_data.errors import DataPathError
from mb_metrics.errors import RunFolderNameError
from mb_metrics.run.folder import RunFolder
from mb_trainer.config import ConfigContainer
from mb_trainer.errors import NoCheckpointError, RunFolderError, UnwritableFolderError
from mb_trainer.recipes import gpt_tiny
from mb_trainer.run.completion import set_run_paths
from mb_trainer.run.preflight import resolve_and_check
from mb_trainer.run.settle import RunOptions, settle_job


def test_what_has_no_place_goes_into_the_run_folder(tmp_path):
    config = gpt_tiny()
    config.checkpoint.save = "/elsewhere"
    set_run_paths(config, RunFolder(tmp_path), Provenance())
    assert (config.checkpoint.save, config.checkpoint.load) == ("/elsewhere", "/elsewhere")
    assert config.logger.tensorboard_dir == str(tmp_path / "tensorboard")


def test_what_the_user_set_to_null_gets_no_place(tmp_path):
    config = gpt_tiny()
    paths = ["checkpoint.save", "checkpoint.load", "logger.tensorboard_dir"]
    set_run_paths(config, RunFolder(tmp_path), Provenance(dict.fromkeys(paths, "command line")))
    assert [config.checkpoint.save, config.checkpoint.load, config.logger.tensorboard_dir] == [None] * 3


def test_a_run_that_saves_nothing_looks_for_nothing_elsewhere(tmp_path):
    config = gpt_tiny()
    set_run_paths(config, RunFolder(tmp_path), Provenance({"checkpoint.save": "code"}))
    assert (config.checkpoint.save, config.checkpoint.load) == (None, None)
    (tmp_path / "checkpoints" / "iter_0000012").mkdir(parents=True)
    set_run_paths(config, RunFolder(tmp_path), Provenance({"checkpoint.save": "code"}))
    assert (config.checkpoint.save, config.checkpoint.load) == (None, str(tmp_path / "checkpoints"))


def paths_of(config):
    return config.checkpoint.save, config.checkpoint.load, config.logger.tensorboard_dir


def own_paths(folder):
    return f"{folder}/checkpoints", f"{folder}/checkpoints", f"{folder}/tensorboard"


def test_one_configuration_serves_several_run_folders(tmp_path):
    config = gpt_tiny()
    for name in ("a", "b"):
        set_run_paths(config, RunFolder(tmp_path / name), Provenance.of(config))
        assert paths_of(config) == own_paths(tmp_path / name)
    config.checkpoint.save = "/elsewhere"
    set_run_paths(config, RunFolder(tmp_path / "c"), Provenance.of(config))
    assert paths_of(config) == ("/elsewhere", "/elsewhere", f"{tmp_path}/c/tensorboard")


def test_the_paths_of_a_run_are_not_in_its_file(tmp_path):
    config = gpt_tiny()
    config.checkpoint.load = "/weights"
    set_run_paths(config, RunFolder(tmp_path / "a"), Provenance.of(config))
    config.to_yaml(tmp_path / "a" / "run_config.yaml")
    provenance = Provenance()
    again = ConfigContainer.from_yaml(tmp_path / "a" / "run_config.yaml", provenance=provenance)
    assert paths_of(again) == (None, "/weights", None)
    set_run_paths(again, RunFolder(tmp_path / "b"), provenance)
    assert paths_of(again) == (f"{tmp_path}/b/checkpoints", "/weights", f"{tmp_path}/b/tensorboard")


@pytest.mark.parametrize("load", ["own", "other"])
def test_the_paths_in_a_file_of_an_older_version_are_those_of_its_run(tmp_path, load):
    """Also if the folder was moved; a path that the user had set stays."""
    config, file = gpt_tiny(), tmp_path / "moved" / "run_config.yaml"
    config.checkpoint.save, config.checkpoint.load, config.logger.tensorboard_dir = own_paths("/first")
    if load == "other":
        config.checkpoint.load = "/weights"
    config.to_yaml(file)
    provenance = Provenance()
    again = ConfigContainer.from_yaml(file, provenance=provenance)
    set_run_paths(again, RunFolder(tmp_path / "b"), provenance)
    own = own_paths(tmp_path / "b")
    assert paths_of(again) == (own if load == "own" else (own[0], "/weights", own[2]))


def test_the_home_directory_is_expanded_in_each_path_and_in_the_run_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = gpt_tiny()
    config.checkpoint.save, config.dataset.sources = "~/ck", ["~/a", "b"]
    config.tokenizer.tokenizer_model = "~"
    set_run_paths(config, RunFolder.named("~/run", name="x"), Provenance({"checkpoint.save": "code"}))
    assert (config.checkpoint.save, config.checkpoint.load) == (f"{tmp_path}/ck", f"{tmp_path}/ck")
    assert config.dataset.sources == [f"{tmp_path}/a", "b"]
    assert (config.tokenizer.tokenizer_model, config.logger.tensorboard_dir) == (
        str(tmp_path),
        f"{tmp_path}/run/tensorboard",
    )


@pytest.mark.parametrize("out", ["s3://bucket/x", Path("s3://bucket/x"), "msc://bucket/x"])
def test_a_run_folder_is_no_url(out):
    with pytest.raises(RunFolderNameError, match=r"--out: .*:/.*bucket/x is a URL"):
        RunFolder.named(out, name="x")


@pytest.mark.parametrize("out", ["/runs/caf\udce9", "run"])
def test_a_run_folder_whose_path_is_not_utf_8_is_refused(tmp_path, monkeypatch, out):
    """Also one in such a working directory."""
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(RunFolderNameError, match=r"--out: /.*caf\\udce9.* is not UTF-8"):
        RunFolder.named(out, name="x")
    with pytest.raises(RunFolderNameError, match="is not UTF-8"):
        RunFolder.named(None, name="x")


def test_a_load_that_leads_to_nothing_is_refused_with_the_nearest_folder(tmp_path):
    (tmp_path / "base" / "iter_0000012").mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=r"\[CK41\] checkpoint.load: no such folder: .*bsae; .*base, holds checkpoints"
    ):
        settled(tmp_path / "run", load=str(tmp_path / "bsae"), skip_train=False)
    own = str(tmp_path / "run" / "checkpoints")
    assert settled(tmp_path / "run", load=own, skip_train=False) == "fresh"
    assert settled(tmp_path / "run", load=str(tmp_path / "run"), skip_train=False) == "fresh"


def test_a_run_does_not_start_from_scratch_in_a_folder_with_checkpoints(tmp_path):
    (tmp_path / "checkpoints" / "iter_0000012").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"checkpoint.load: is null, .* has checkpoints"):
        settled(tmp_path, load=None, skip_train=False)
    with pytest.raises(NoCheckpointError, match=r"checkpoint.load is null, and the weights would be random"):
        settled(tmp_path, load=None)
    assert settled(tmp_path, load=None, save=None, skip_train=False) == "fresh"


def test_a_step_that_is_not_there_is_refused(tmp_path):
    (tmp_path / "iter_0000012").mkdir()
    with pytest.raises(ConfigError, match=r"ckpt_step: .* has no step 999; steps there: 12, .*\. Name one"):
        settled(tmp_path / "run", load=str(tmp_path), ckpt_step=999, skip_train=False)
    assert not (tmp_path / "run").exists()


def settled(out, **checkpoint):
    """Prepare an evaluation of the run in a folder, and return the state of the folder."""
    config = gpt_tiny()
    config.validation.skip_train = checkpoint.pop("skip_train", True)
    known = Provenance.of(config)
    for name, value in checkpoint.items():
        setattr(config.checkpoint, name, value)
        known.note(f"checkpoint.{name}", "command line")
    return settle_job(config, RunOptions(out=out, provenance=known, environment={})).status.state


def test_random_weights_are_not_evaluated(tmp_path):
    with pytest.raises(
        NoCheckpointError, match=r"skip_train: .*checkpoints has no checkpoint, and the weights"
    ):
        settled(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("12\n")
    assert settled(tmp_path / "run", pretrained_checkpoint=str(tmp_path)) == "fresh"
    assert settled(tmp_path / "run", load=str(tmp_path)) == "resumable"


def test_an_evaluation_needs_no_folder_that_can_be_written(tmp_path):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("12\n")
    (tmp_path / "file").touch()
    archive = {"load": str(tmp_path), "save": str(tmp_path / "file" / "checkpoints")}
    assert settled(tmp_path / "run", **archive) == "resumable"
    with pytest.raises(CheckpointFolderError, match="cannot write checkpoints"):
        settled(tmp_path / "run", **archive, skip_train=False)


def test_only_an_evaluation_does_without_a_run_folder(tmp_path):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("12\n")
    (tmp_path / "file").touch()
    assert settled(tmp_path / "file" / "run", load=str(tmp_path)) == "resumable"
    with pytest.raises(
        UnwritableFolderError, match=r"cannot be written \(.*file is not a folder\), .* --out"
    ):
        settled(tmp_path / "file" / "run", save=str(tmp_path), skip_train=False)


def test_a_requested_feature_that_is_not_applied_is_a_warning():
    config = gpt_tiny()
    config.comm_overlap.tp_comm_overlap = True
    settled = resolve_and_check(
        config, world_size=1, provenance=Provenance()
    )  # TP is 1, and Transformer Engine is not installed
    assert [warning.id for warning in settled.warnings] == ["O02", "O04"]


def test_rank_0_checks_data_and_folders_for_all(tmp_path):
    config = gpt_tiny()
    config.dataset.sources, config.train.micro_batch_size = [str(tmp_path / "missing")], 4
    (tmp_path / "run").write_text("a file, where a folder would be")
    ranks = [{"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"} for rank in "01"]
    with pytest.raises(DataPathError, match="missing"):
        settle_job(config, RunOptions(out=tmp_path / "run", environment=ranks[0]))
    assert settle_job(config, RunOptions(out=tmp_path / "run", environment=ranks[1])).world.rank == 1
