"""Each example runs as a user runs it, and its output is read back."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mb_metrics import read_jsonl

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, folder, *needs):
    for package in needs:
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, EXAMPLES / f"{name}.py", folder]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, list(read_jsonl(folder / "metrics.jsonl"))


def training(rows, loss="loss"):
    return [row for row in rows if loss in row]


def test_a_loop_without_torch(tmp_path):
    text, rows = run("without_torch", tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert text.count("s/step") == 3
    assert all(len(line) <= 120 for line in text.splitlines())
    assert "GPU" not in text


def test_a_plain_pytorch_loop(tmp_path):
    text, rows = run("plain_pytorch", tmp_path, "torch")
    steps = training(rows)
    assert [row["step"] for row in steps] == list(range(1, 41))
    assert steps[-1]["loss"] < steps[0]["loss"] / 2
    assert steps[-1]["samples vs steps"] == 640
    assert [row["step"] for row in rows if "loss validation" in row] == [20, 40]
    assert "on validation data" in text


def test_hugging_face_trainer(tmp_path):
    text, rows = run("hf_trainer", tmp_path, "transformers", "accelerate")
    steps = training(rows)
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert [row["batch-size"] for row in steps] == [8.0] * 12
    assert all(3.9 < row["loss"] < 4.5 for row in steps)  # a guess among 64 tokens: log(64) = 4.16
    assert steps[-1]["learning-rate"] < steps[0]["learning-rate"]
    assert [row["step"] for row in rows if "loss validation" in row] == [6, 12]
    assert text.count(" tok/s") == 3


def test_a_lightning_loop(tmp_path):
    text, rows = run("lightning_loop", tmp_path, "lightning")
    steps = training(rows, "train_loss")
    assert [row["step"] for row in steps] == list(range(1, 21))
    assert [row["batch-size"] for row in steps] == [16.0] * 20
    assert steps[-1]["train_loss"] < steps[0]["train_loss"]
    assert [row["step"] for row in rows if "val_loss" in row] == [10, 20]
    assert "| lr-Adam 0.1 |" in text


def test_a_loop_like_megatrons(tmp_path):
    text, rows = run("megatron_style", tmp_path, "torch")
    assert [row["step"] for row in rows] == list(range(1, 31))
    assert rows[-1]["lm loss"] < rows[0]["lm loss"]
    assert rows[-1]["samples vs steps"] == 240
    assert text.count("Step Time : ") == 3
    assert text.count("Theoretical memory footprints: ") == 2


def own_rows(rows):
    """Return what the loop logs to W&B itself, with the steps of W&B, without the times."""
    own = ("_step", "iter", "train/loss", "lr", "val/loss", "final")
    return [{name: row[name] for name in own if name in row} for row in rows if "iter" in row]


def test_a_loop_with_its_own_wandb_run(tmp_path):
    pytest.importorskip("wandb", reason="needs mb-metrics[wandb]")
    pytest.importorskip("torch")
    from wandb_files import history, runs, settings

    text, rows = run("nanogpt_with_wandb", tmp_path / "with")
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert text.count(" tok/s") == 8
    source = (EXAMPLES / "nanogpt_with_wandb.py").read_text()
    ours = re.compile(r"^ *# >>> mb-metrics\n(.*?)^ *# <<< mb-metrics\n", re.DOTALL | re.MULTILINE)
    lines = [line for block in ours.findall(source) for line in block.splitlines() if line.strip()]
    assert len(lines) <= 10
    without = tmp_path / "without.py"
    without.write_text(ours.sub("", source))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, without, tmp_path / "without"], env=environment, check=True)
    (found,), (plain,) = runs(tmp_path / "with"), runs(tmp_path / "without")
    assert own_rows(history(found)) == own_rows(history(plain))
    assert own_rows(history(found))[-1] == {"_step": 10, "iter": 40, "final": 1}
    assert len(history(found)) == len(history(plain))
    for name in ("display_name", "project", "config"):
        assert getattr(settings(found), name) == getattr(settings(plain), name), name
    added = [row for row in history(found) if "mb_metrics/train/loss" in row]
    assert [row["mb_metrics/step"] for row in added] == list(range(5, 41, 5))


def test_without_a_folder_an_example_prints_its_usage():
    command = [sys.executable, EXAMPLES / "without_torch.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the following arguments are required: folder" in done.stderr
