"""The example script on Megatron-LM's own training code: its metrics, its checkpoints, and its stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import mb, metrics

SCRIPT = Path(__file__).parents[2] / "meta" / "examples" / "from_megatron_lm" / "train.py"


def start(out, *flags):
    """Start the script with a folder for its checkpoints."""
    words = [sys.executable, str(SCRIPT), "--save", str(out), "--load", str(out), *flags]
    environment = {**os.environ, "MASTER_PORT": "0"}
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def train(out, steps, *flags):
    """Run the script to its end, and return its output."""
    process = start(out, "--train-iters", str(steps), *flags)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:]
    return output


def losses(out):
    """Return the loss of each step."""
    return {row["step"]: row["lm loss"] for row in metrics(out) if "lm loss" in row}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the folder of a run of eight steps, with checkpoints of the fifth and of the last."""
    out = tmp_path_factory.mktemp("uninterrupted")
    train(out, 8, "--save-interval", "5")
    return out


def test_the_loss_falls(uninterrupted):
    found = losses(uninterrupted)
    assert list(found) == list(range(1, 9))
    assert found[8] < found[1]


def test_a_resumed_run_equals_the_uninterrupted_one(uninterrupted, tmp_path):
    output = train(tmp_path, 8, "--load", str(uninterrupted / "iter_0000005"))
    assert f"resumed from {uninterrupted}/iter_0000005 at step 5" in output
    after = {step: loss for step, loss in losses(uninterrupted).items() if step > 5}
    assert losses(tmp_path) == after


def test_a_signal_saves_and_ends_the_run(tmp_path):
    process = start(tmp_path, "--train-iters", "1000000", "--log-interval", "1")
    deadline = time.monotonic() + 120
    while not (tmp_path / "metrics.jsonl").exists() or not losses(tmp_path):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output[-3000:]
    assert "SIGTERM on rank 0" in output
    assert (tmp_path / "latest_checkpointed_iteration.txt").exists()


FLAGS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --lr 1e-3 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 3 --lr-decay-style constant --eval-iters 0 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 63 --transformer-impl local --no-gradient-accumulation-fusion "
    "--no-masked-softmax-fusion --no-bias-dropout-fusion --no-bias-gelu-fusion --no-persist-layer-norm --no-rope-fusion"
)


def test_converted_arguments_train(tmp_path):
    file, out = tmp_path / "run.yaml", tmp_path / "run"
    done = mb("config", "import-args", *FLAGS.split(), f"--out={file}")
    assert done.returncode == 0, done.stderr
    done = mb("pretrain", str(file), f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in metrics(out) if "lm loss" in row] == [1, 2, 3]
