"""A recipe in the style of Megatron-Bridge runs after its imports are replaced."""

import os
import subprocess
import sys
from pathlib import Path

from runs import mb, metrics

RECIPE = Path(__file__).parents[2] / "meta" / "examples" / "from_megatron_bridge" / "recipe.py"


def test_its_script_trains_with_its_forward_step_and_callback(tmp_path):
    ended = subprocess.run(
        [sys.executable, str(RECIPE)],
        cwd=tmp_path,
        env=dict(os.environ),
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert [line.split(":")[0] for line in ended.stdout.splitlines() if line.startswith("step ")] == [
        f"step {number}" for number in range(1, 7)
    ]
    assert [row["step"] for row in metrics(tmp_path / "runs" / "run") if "lm loss" in row] == [*range(1, 7)]


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
