"""Runs, samples and exports whose last checkpoint is damaged, missing, or not the requested one."""

import shutil

import pytest
import torch.distributed as dist
import yaml
from runs import events, exit_code_of, losses, train_here

from mb_checkpoint import CheckpointConfig, CheckpointNotFoundError
from mb_checkpoint.errors import CheckpointFolderError
from mb_checkpoint.load.completion import resumed_step, verify_last_checkpoint_on_all_ranks
from mb_checkpoint.locks import writer_lock

LAST = "checkpoints/iter_0000006"


@pytest.fixture(scope="module")
def words(overrides):
    """Six steps, and a checkpoint after every second."""
    return [*overrides, "train.train_iters=6", "checkpoint.save_interval=2", "validation.eval_iters=0"]


@pytest.fixture(scope="module")
def base(words, tmp_path_factory):
    """The folder of a run that is complete."""
    out = tmp_path_factory.mktemp("base") / "run"
    assert train_here(words, out).saved
    return out


@pytest.fixture
def run(base, tmp_path):
    """A copy of the complete run, to be damaged."""
    return shutil.copytree(base, tmp_path / "run")


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)


def remove(folder):
    shutil.rmtree(folder)


DAMAGE = {
    "flipped": lambda run: flip(run / LAST / "__0_0.distcp"),
    "gone": lambda run: remove(run / LAST),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_whose_last_checkpoint_is_damaged_is_not_complete(words, run, capsys, damage):
    DAMAGE[damage](run)
    outcome = train_here(words, run)
    printed = capsys.readouterr().out
    assert (outcome.reason, outcome.step, outcome.saved) == ("finished", 6, True)
    assert f"skipped {run / LAST}: " in printed
    assert f"resumed from {run}/checkpoints/iter_0000004 at step 4" in printed
    assert train_here(words, run).saved is False


def test_ranks_compare_the_last_checkpoint_together(run):
    section = CheckpointConfig(load=str(run / "checkpoints"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert verify_last_checkpoint_on_all_ranks(section, train_iters=6).path == run / LAST
        assert verify_last_checkpoint_on_all_ranks(section, train_iters=7) is None
        flip(run / LAST / "__0_0.distcp")
        assert verify_last_checkpoint_on_all_ranks(section, train_iters=6) is None
        assert resumed_step(section) == 6  # by its name
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("tracker", [b"92", bytes(range(128, 256)), b""])
def test_a_tracker_with_any_other_content_changes_nothing(words, run, tracker):
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_bytes(tracker)
    before = events(run)
    assert train_here(words, run).message == f"{run}: the run is complete (6 steps); nothing to do."
    assert events(run) == before


def test_a_run_without_an_intact_checkpoint_to_resume_from_is_rejected(words, run):
    for data in run.glob("checkpoints/*/__0_0.distcp"):
        flip(data)
    with pytest.raises(
        CheckpointNotFoundError, match=r"no complete checkpoint .*iter_0000002: __0_0.distcp differs"
    ):
        train_here(words, run)
    assert not (run / "checkpoints" / ".writer").exists()


def test_where_all_steps_are_elsewhere_the_new_folder_is_not_called_complete(words, base, tmp_path, capsys):
    outcome = train_here([*words, f"checkpoint.load={base}"], tmp_path / "new")
    assert outcome.message.startswith(f"{base / LAST}: has all 6 steps ")
    assert outcome.message.endswith(f"nothing to do, and {tmp_path / 'new'} stays empty.")
    assert not (tmp_path / "new").exists()


def test_a_named_step_is_used_until_a_newer_one_is_saved(words, base, tmp_path, capsys):
    out = tmp_path / "new"
    arguments = [*words, f"checkpoint.load={base}", "checkpoint.ckpt_step=2", "train.exit_interval=4"]
    assert train_here(arguments, out).step == 4
    assert yaml.safe_load((out / "run_config.yaml").read_text())["checkpoint"]["ckpt_step"] is None
    assert train_here(arguments, out).reason == "finished"
    files = (
        out / "run_config.yaml",
        out / LAST / "run_config.yaml",
    )  # a run with these settings starts there, too
    assert [yaml.safe_load(each.read_text())["checkpoint"]["load"] for each in files] == [
        str(base / "checkpoints")
    ] * 2
    assert (
        "checkpoint.ckpt_step=2: this run started from that step and has saved step 4 since"
        in capsys.readouterr().out
    )
    assert [each for each in events(out) if each[0] in ("start", "resume", "save")] == [
        ("resume", 2),
        ("save", 4),
        ("resume", 4),
        ("save", 6),
    ]


def test_two_runs_do_not_save_in_one_folder(words, tmp_path):
    shared = tmp_path / "shared"
    with (
        writer_lock(shared, run="runs/other"),
        pytest.raises(CheckpointFolderError, match=r"shared: process \d+ on .*\(runs/other\)"),
    ):
        train_here([*words, f"checkpoint.save={shared}"], tmp_path / "new")
    assert list(shared.iterdir()) == []


def skipping_the_last(run):
    """Return the messages about a damaged last checkpoint and the one that is used instead."""
    return [
        f"skipped {run / LAST}: __0_0.distcp differs from the manifest (checksum)",
        f"taken instead: {run}/checkpoints/iter_0000004",
    ]


def test_a_sample_takes_the_newest_intact_checkpoint_and_reports_it(run, capsys):
    flip(run / LAST / "__0_0.distcp")
    assert (
        exit_code_of("sample", run, "--prompt", "the loop", "--tokens", 2, "--temperature", 0.0, "--seed", 1)
        == 0
    )
    text, printed = capsys.readouterr()
    assert text.startswith("the loop")
    assert printed.splitlines() == skipping_the_last(run)


def test_an_export_takes_the_newest_intact_checkpoint_and_reports_it(run, tmp_path, capsys):
    flip(run / LAST / "__0_0.distcp")
    assert exit_code_of("export-hf", run, "--out", tmp_path / "exported") == 0
    printed = capsys.readouterr()
    assert printed.out == f"weights of step 4 in {tmp_path / 'exported'}\n"
    assert printed.err.splitlines() == skipping_the_last(run)


def test_a_run_whose_disk_is_lost_resumes_from_the_storage(words, base, tmp_path, capsys):
    run, storage = tmp_path / "run", tmp_path / "storage"
    words = [*words, f"checkpoint.storage={storage}"]
    assert train_here(words, run).saved
    remove(run)
    remove(next(storage.glob("iter_0000006.*")))
    copied = max(
        int(folder.name[5:12]) for folder in storage.glob("iter_*")
    )  # a busy machine copies not all of them
    capsys.readouterr()
    outcome = train_here(words, run)
    assert (outcome.reason, outcome.step, outcome.saved) == ("finished", 6, True)
    printed = capsys.readouterr().out
    assert (
        f": run in {run}, which has no checkpoint; resumes from checkpoint.storage if that has one" in printed
    )
    assert f"resumed from {run}/checkpoints/iter_{copied:07d} at step {copied}" in printed
    assert losses(run) == {step: losses(base)[step] for step in range(copied + 1, 7)}
    assert next(storage.glob("iter_0000006.*"), None) is not None
    remove(next(storage.glob("iter_0000006.*")))  # as a process that was killed before its copy had ended
    (storage / "latest.json").unlink()
    assert not train_here(words, run).saved
    assert next(storage.glob("iter_0000006.*"), None) is not None
    printed = capsys.readouterr().out
    assert printed.index("copied iter_0000006") < printed.index("the run is complete (6 steps)")
