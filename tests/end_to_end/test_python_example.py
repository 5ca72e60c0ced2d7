"""The example of pretraining and finetuning from Python."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "meta" / "examples" / "pretrain_and_finetune.py"


def run(folder):
    """Return the lines that the script itself prints."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, str(SCRIPT), str(folder), "3"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True, timeout=300)
    return [line for line in done.stdout.splitlines() if " at step 3" in line]


def test_both_runs_end_and_are_complete_afterwards(tmp_path):
    first, second = run(tmp_path)
    assert first.startswith("pretraining: finished at step 3, losses [8.")
    assert second == "finetuning: finished at step 3"
    assert run(tmp_path) == ["pretraining: finished at step 3, losses []", second]
