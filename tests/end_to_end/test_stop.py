"""Stopping as a user does: Ctrl-C or SIGTERM to the process, and on again with the same command."""

import re
import signal

import pytest
from runs import events, losses, start_mb, wait_for_steps


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(overrides, tmp_path, number):
    out = tmp_path / "run"
    words = ["pretrain", *overrides, "train.train_iters=100000", "logger.log_interval=1"]
    words += ["validation.eval_interval=null", "validation.eval_iters=0", "--out", str(out)]
    process = start_mb(*words)
    wait_for_steps(out, 5)
    process.send_signal(number)
    said, complaints = process.communicate(timeout=240)
    assert (process.returncode, complaints) == (0, "")
    stopped = max(losses(out))
    assert f"{number.name} on rank 0" in said
    assert f"successfully saved checkpoint from iteration {stopped:7d}" in said
    assert re.search(r"resume with +(uv run )?mb pretrain", said)
    assert events(out)[-2:] == [("save", stopped), ("stop", stopped)]
