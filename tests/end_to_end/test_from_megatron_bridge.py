"""Recipes in the style of Megatron-Bridge run after their imports are replaced."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import losses, mb, metrics

from mb_checkpoint import describe_checkpoint

RECIPE = Path(__file__).parents[2] / "meta" / "examples" / "from_megatron_bridge" / "recipe.py"


MIXED = """
import sys

from mb_config import apply_overrides

def build():
    config = RECIPES["gpt_tiny"].build()
    config.ddp.check_for_nan_in_grad = DistributedDataParallelConfig().check_for_nan_in_grad
    return config

if __name__ == "__main__":
    config = build()
    apply_overrides(config, sys.argv[1:])
    pretrain(config, out="out")
"""
OURS = "from mb_trainer import RECIPES, pretrain\n"
MEGATRON = "from megatron.core.distributed import DistributedDataParallelConfig\n"


def run_script(script, folder, *words):
    """Run a script in a folder, and return what it printed."""
    ended = subprocess.run(
        [sys.executable, str(script), *words],
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
    assert [row["step"] for row in metrics(tmp_path / "runs" / "recipe") if "lm loss" in row] == [
        *range(1, 7)
    ]
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


@pytest.mark.parametrize(
    "imports", [MEGATRON + OURS, OURS + MEGATRON], ids=["megatron first", "trainer first"]
)
def test_a_recipe_imports_megatron_core_at_its_top(imports, overrides, tmp_path):
    recipe = tmp_path / "mixed.py"
    recipe.write_text(imports + MIXED)
    ended = mb("pretrain", f"{recipe}:build", *overrides, "train.train_iters=2", f"--out={tmp_path / 'out'}")
    assert ended.returncode == 0, ended.stderr
    assert [*losses(tmp_path / "out")] == [1, 2]


def test_a_script_with_sorted_imports_trains(overrides, tmp_path):
    script = tmp_path / "mixed.py"
    script.write_text(OURS + MEGATRON + MIXED)
    run_script(script, tmp_path, *overrides, "train.train_iters=2")
    assert [*losses(tmp_path / "out")] == [1, 2]
