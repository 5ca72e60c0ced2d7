"""`mb launch nemo-run` with the local executor: a stopped run resumes to its end."""

from importlib.util import find_spec

import pytest
from runs import events, losses, mb

pytestmark = pytest.mark.skipif(find_spec("nemo_run") is None, reason="needs mb-trainer[launch]")


def test_nemo_run_resumes_a_run(overrides, tmp_path):
    words = [*overrides, "train.train_iters=8", "checkpoint.save_interval=3", "validation.eval_iters=0"]
    environment = {"NEMORUN_HOME": str(tmp_path / "home")}
    launch = ["launch", "nemo-run", "--executor=local", "--set=ntasks_per_node=2", "--", "pretrain"]
    out = tmp_path / "run"
    assert mb("pretrain", *words, f"--out={out}", "train.exit_interval=5", "--nproc=2").returncode == 0
    ended = mb(*launch, *words, f"--out={out}", "--resume-with-changes", environment=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "resumed from" in ended.stdout
    assert "(1 nodes, 2 ranks)" in ended.stdout
    assert [*losses(out)] == [*range(1, 9)]
    assert [name for name, _ in events(out) if name != "save"] == ["start", "stop", "resume", "stop"]
