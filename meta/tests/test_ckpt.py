"""`mb ckpt`, mounted from mb-checkpoint, and run folders in place of the checkpoints in them."""

from typer.testing import CliRunner

from mb_checkpoint.inspect.inspection import NAME_A_FOLDER
from mb_trainer.cli.app import app


def test_the_commands_of_mb_checkpoint_are_mounted(tmp_path):
    done = CliRunner().invoke(app, ["ckpt", "ls", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (2, f"error: {tmp_path}: no checkpoint. {NAME_A_FOLDER}\n")
    shown = CliRunner().invoke(app, ["ckpt", "prune", "--help"], prog_name="mb").stdout
    assert "Example: mb ckpt prune runs/gpt_tiny --keep 2 --dry-run" in shown


def test_a_run_folder_is_a_name_of_its_checkpoints_also_where_a_run_starts_from_it(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "iter_0000030").mkdir(parents=True)
    inside = str(run / "checkpoints")
    for field in ("load", "pretrained_checkpoint"):
        words = ["gpt_tiny", f"checkpoint.{field}={run}", "checkpoint.finetune=true"]
        shown = CliRunner().invoke(app, ["config", "show", *words, f"--out={tmp_path / 'new'}"])
        assert (shown.exit_code, f"  {field}: {inside}\n" in shown.stdout) == (0, True)


def test_a_run_folder_without_checkpoints_is_refused_before_anything_is_loaded(tmp_path):
    for name in ("run_config.yaml", "events.jsonl"):
        (tmp_path / name).touch()
    words = ["check", "checkpoint.finetune=true", f"checkpoint.load={tmp_path}"]
    assert "error CK41" in CliRunner().invoke(app, words).stdout
    words = ["finetune", f"checkpoint.pretrained_checkpoint={tmp_path}", f"--out={tmp_path / 'new'}"]
    assert f"no such folder: {tmp_path}/checkpoints" in CliRunner().invoke(app, words).stderr
