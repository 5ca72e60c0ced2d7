"""Stopped by a signal to the launcher or to one rank, and on again with the same command: bit for bit."""

import re
import signal

import psutil
import pytest
from runs import events, losses, mb, read_until, start_mb, wait_for_steps

LAYOUTS = {
    "DP2": [],
    "TP2": ["model.tensor_model_parallel_size=2"],
    "PP2": ["model.pipeline_model_parallel_size=2", "model.num_layers=2"],
}
STEPS = 60


def command(overrides, layout, out, *, exit_signal="SIGTERM"):
    words = [*overrides, *layout, f"train.train_iters={STEPS}", "logger.log_interval=1"]
    words += [f"train.exit_signal={exit_signal}"]
    words += ["validation.eval_interval=null", "validation.eval_iters=0", "checkpoint.save_interval=null"]
    return ["pretrain", *words, "--nproc", "2", "--out", str(out)]


def listening_addresses(pid):
    """Return every address on which a process or one of its children accepts connections."""
    launcher = psutil.Process(pid)
    connections = [
        connection
        for process in (launcher, *launcher.children(recursive=True))
        for connection in process.net_connections("inet")
    ]
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number", "to"), [
    pytest.param("DP2", signal.SIGUSR1, "launcher", marks=pytest.mark.matrix),
    pytest.param("TP2", signal.SIGINT, "launcher", marks=pytest.mark.matrix),
    ("PP2", signal.SIGTERM, "one rank"),
])  # fmt: skip
def test_stop_and_go_is_bit_for_bit(overrides, tmp_path, name, number, to):
    own = {"exit_signal": "SIGTERM" if number == signal.SIGINT else number.name}
    straight = mb(*command(overrides, LAYOUTS[name], tmp_path / "straight", **own))
    assert straight.returncode == 0

    words = command(overrides, LAYOUTS[name], tmp_path / "run", **own)
    process = start_mb(*words)
    wait_for_steps(tmp_path / "run", 3)
    assert listening_addresses(process.pid) == {"127.0.0.1"}
    target = process if to == "launcher" else psutil.Process(process.pid).children()[1]
    target.send_signal(number)
    printed, complaints = process.communicate(timeout=240)
    assert (process.returncode, complaints) == (0, "")
    stopped = max(losses(tmp_path / "run"))
    assert stopped < STEPS
    assert f"stopped after step {stopped}: {number.name} on rank" in printed
    assert re.search(r"resume with +(uv run )?mb pretrain", printed)
    assert events(tmp_path / "run")[-2:] == [("save", stopped), ("stop", stopped)]

    again = mb(*words)
    assert again.returncode == 0
    assert f"at step {stopped}" in again.stdout
    assert losses(tmp_path / "run") == losses(tmp_path / "straight")


@pytest.mark.slow
def test_a_second_interrupt_stops_at_once(overrides, tmp_path):
    long_steps = ["train.train_iters=100000", "train.global_batch_size=1600"]
    process = start_mb(*command(overrides, long_steps, tmp_path / "run"))
    wait_for_steps(tmp_path / "run", 1)
    process.send_signal(signal.SIGINT)
    read_until(process, "stopping after this step")
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=240)
    assert (process.returncode, "stopped after step" in printed) == (130, False)
