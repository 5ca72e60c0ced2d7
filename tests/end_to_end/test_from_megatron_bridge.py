"""Recipes in the style of Megatron-Bridge run after their imports are replaced."""

import os
import subprocess
import sys
from pathlib import Path

from runs import mb, metrics

from mb_checkpoint import describe_checkpoint

RECIPE = Path(__file__).parents[2] / "meta" / "examples" / "from_megatron_bridge" / "recipe.py"


def run_script(script, folder):
    """Run a script of the examples in a folder, and return what it printed."""
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=dict(os.environ),
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_its_scripts_train_with_their_forward_step_and_callback_then_finetune(tmp_path):
    printed = run_script(RECIPE, tmp_path)
    assert [line.split(":")[0] for line in printed.splitlines() if line.startswith("step ")] == [
        f"step {number}" for number in range(1, 7)
    ]
    assert [row["step"] for row in metrics(tmp_path / "runs" / "run") if "lm loss" in row] == [*range(1, 7)]
    run_script(RECIPE.with_name("finetune.py"), tmp_path)
    losses = [row["lm loss"] for row in metrics(tmp_path / "runs" / "counting") if "lm loss" in row]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    stored = describe_checkpoint(tmp_path / "runs" / "counting" / "checkpoints").tensors
    weights = [name for name in stored if not name.startswith(("optimizer", "chained"))]
    assert weights
    assert all(".adapter." in name for name in weights)


def test_commands_take_it_by_its_file(tmp_path):
    name = f"{RECIPE}:pretrain_config"
    check = mb("check", name)
    assert check.returncode == 0, check.stderr
    ended = mb("pretrain", name, "train.train_iters=3", f"--out={tmp_path}")
    assert ended.returncode == 0, ended.stderr
    words = ("sample", str(tmp_path), "--prompt=1 2 3", "--tokens=2")
    assert "give its module with --import" in mb(*words).stderr
    sample = mb(*words, "--import=recipe", environment={"PYTHONPATH": str(RECIPE.parent)})
    assert sample.stdout.startswith("1 2 3"), sample.stderr
