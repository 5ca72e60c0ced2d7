"""Checkpoints of Megatron-Bridge's own code resume here, and ours resume there as its own.

Megatron-Bridge needs an environment of its own, whose interpreter MB_BRIDGE_PYTHON names: see
`tests/megatron_bridge_pretrain.py`.
"""

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import numpy
import pytest
from megatron_lm_flags import FLAGS, HOST, as_printed
from runs import losses, mb

from mb_data import IndexedWriter

SCRIPT = Path(__file__).parents[1] / "megatron_bridge_pretrain.py"
STEP = re.compile(r" iteration +(\d+)/.* lm loss: (\S+)")
PYTHON = os.environ.get("MB_BRIDGE_PYTHON")
pytestmark = pytest.mark.skipif(
    PYTHON is None, reason="MB_BRIDGE_PYTHON names no environment with megatron-bridge"
)


def bridge_run(**settings):
    """Run Megatron-Bridge to the ninth step; return the loss of each step, as it prints it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = subprocess.run(
        [
            PYTHON,
            str(SCRIPT),
            json.dumps({"iters": 9, **{name: str(each) for name, each in settings.items()}}),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return dict(STEP.findall(done.stdout))


def test_its_run_resumes_here_and_ours_there(tmp_path):
    prefix = tmp_path / "corpus"
    random = numpy.random.default_rng(1)
    with IndexedWriter(prefix, dtype=numpy.uint16) as writer:
        for _ in range(120):
            writer.add_document(random.integers(0, 63, size=int(random.integers(20, 90))).tolist())
    data = {"corpus": prefix, "cache": tmp_path / "cache"}
    undisturbed = bridge_run(save=tmp_path / "theirs", **data)
    assert [*undisturbed] == [str(step) for step in range(1, 10)]

    flags = [*FLAGS.split(), "--data-path", str(prefix), "--data-cache-path", str(tmp_path / "cache")]
    settings = tmp_path / "run.yaml"
    assert mb("config", "import-args", *flags, *HOST.split(), f"--out={settings}").returncode == 0
    load = (f"checkpoint.load={tmp_path / 'theirs'}", "checkpoint.ckpt_step=3", "train.exit_interval=6")
    done = mb("pretrain", str(settings), *load, f"--out={tmp_path / 'ours'}")
    assert done.returncode == 0, done.stderr
    assert as_printed(losses(tmp_path / "ours")) == {step: undisturbed[str(step)] for step in (4, 5, 6)}

    again = bridge_run(load=tmp_path / "ours" / "checkpoints", save=tmp_path / "again", **data)
    own = tmp_path / "theirs"
    (own / "iter_0000009").rename(own / "last")
    for tracker in ("latest_checkpointed_iteration.txt", "latest_train_state.pt"):
        (own / tracker).unlink()
    (own / "latest_checkpointed_iteration.txt").write_text("6")
    assert again == bridge_run(load=own, save=tmp_path / "control", **data)
    assert [*again] == ["7", "8", "9"]
