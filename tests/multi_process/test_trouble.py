"""Trouble while running: exit code 1, one clear message, the cause first, and nothing that was saved is lost."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from runs import losses, mb, read_until, start_mb, train_here, wait_for_steps

ENDLESS = ["train.train_iters=100000", "logger.log_interval=1", "checkpoint.save_interval=null"]
ENDLESS += ["validation.eval_interval=null", "validation.eval_iters=0"]


@pytest.mark.slow
def test_a_rank_that_raises_is_named_with_its_traceback_first(overrides, tmp_path):
    result = faulty(overrides, tmp_path, "raise", rank=0)
    assert result.returncode == 1
    assert result.stderr.startswith("error: rank 0: Traceback")
    assert result.stderr.count("Traceback") == 1
    assert "RuntimeError: a planted fault" in result.stderr


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_within_seconds(overrides, tmp_path):
    out = tmp_path / "überlauf-тест"
    process = start_mb("pretrain", *overrides, *ENDLESS, "--nproc", "2", "--out", str(out))
    wait_for_steps(out, 3)
    ranks = sorted(psutil.Process(process.pid).children(), key=psutil.Process.create_time)
    ranks[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    _, complaints = process.communicate(timeout=240)
    assert time.monotonic() - killed < 60  # and not the minutes of a collective that waits
    assert process.returncode == 1
    assert complaints.startswith("error: rank 1 was killed by SIGKILL")
    assert not any(rank.is_running() for rank in ranks)
    *_, last = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    assert (last["event"], last["reason"]) == ("stop", "failed")
    assert last["message"].startswith("rank 1 was killed by SIGKILL")


RECIPE = f"{Path(__file__).parent / 'faulty_gpt.py'}:recipe"


def faulty(overrides, folder, kind, *words, rank=1):
    """Run two ranks of which one fails before step 5; return the ended process."""
    environment = {"PLANTED_FAULTS": json.dumps([(rank, kind, 4)]), "PLANTED_FAULT_FOLDER": str(folder)}
    out = f"--out={folder / 'run'}"
    return mb("pretrain", RECIPE, *overrides, *words, "--nproc=2", out, environment=environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cause", "end"),
    [
        ("exit 7", "error: rank 1 ended with exit code 7", ""),
        ("exit 0", "error: rank 1 ended with exit code 0 in the middle of its work", ""),
        (
            "SystemExit 0",
            "error: rank 1: Traceback",
            "left the run by SystemExit(0), and the other ranks would wait",
        ),
        ("KeyboardInterrupt", "error: rank 1: Traceback", "KeyboardInterrupt"),
    ],
)
def test_a_rank_that_leaves_on_its_own_is_the_first_cause(overrides, tmp_path, kind, cause, end):
    ended = faulty(overrides, tmp_path, kind)
    assert ended.returncode not in (0, None)
    assert ended.stderr.startswith(cause)
    assert end in ended.stderr
    assert "SIGTERM: stopping" not in ended.stdout  # of the launcher, not of a user


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_the_first_cause(overrides, tmp_path):
    """The collective of the other rank fails after a minute; the report comes after half of it."""
    ended = faulty(overrides, tmp_path, "hang", "dist.distributed_timeout_minutes=1")
    assert ended.returncode == 1
    assert re.match(
        r"error: no progress for \d+ s: check rank 1, which sends no heartbeats: stopped, dead, or on an "
        r"unreachable machine; then rank 0: Traceback",
        ended.stderr,
    )
    assert "check rank 1, which sends no heartbeats" in ended.stdout  # while the run still waits


def test_a_requested_port_in_use_is_rejected(overrides, tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["pretrain", *overrides, "--nproc", "2", "--out", str(tmp_path / "run")]
        result = mb(*words, environment={"MASTER_PORT": port})
    assert (result.returncode, (tmp_path / "run").exists()) == (1, False)
    assert result.stderr.startswith(f"error: MASTER_PORT: port {port} is in use")


@pytest.mark.slow
def test_a_checkpoint_of_another_shape_names_the_tensors_once(overrides, tmp_path):
    train_here([*overrides, "train.train_iters=2"], tmp_path / "run")
    words = [*overrides, "model.hidden_size=64", "--resume-with-changes", "--nproc", "2"]
    result = mb("pretrain", *words, "--out", str(tmp_path / "run"))
    assert result.returncode == 1
    assert result.stderr.count("made by a model of another shape") == 1
    assert "decoder.final_layernorm.weight: [32] in the checkpoint, [64] in the model" in result.stderr


@pytest.fixture
def small_disk(tmp_path):
    """A disk with room for one checkpoint and a bit."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [[], ["checkpoint.async_save=true", "checkpoint.async_write_results_mp_mode=fork"]],
    ids=["sync", "async"],
)
def test_a_disk_that_fills_up_keeps_the_previous_checkpoint(overrides, small_disk, tmp_path, more):
    words = [*overrides, *more, f"checkpoint.save={small_disk}/checkpoints", "checkpoint.most_recent_k=-1"]
    words += ["train.train_iters=15", "checkpoint.save_interval=5", "validation.eval_interval=null"]
    result = mb("pretrain", *words, "validation.eval_iters=0", "--out", str(tmp_path / "run"))
    assert result.returncode == 1
    assert re.search(
        r"^error: checkpoint of the last step, 15: could not be written in two tries; the second ended with: "
        r"checkpoint save at step 15 to .* failed \(0.0 GiB free\)",
        result.stderr,
        re.MULTILINE,
    )
    assert result.stderr.count("error: checkpoint of the last step") == 1
    assert "Traceback" not in result.stderr
    assert "SIGTERM" not in result.stdout + result.stderr
    saved = int((small_disk / "checkpoints/latest_checkpointed_iteration.txt").read_text())
    stop_there = [
        *words,
        f"train.train_iters={saved}",
        "validation.eval_iters=0",
        "checkpoint.save_interval=null",
    ]
    again = mb("pretrain", *stop_there, "--resume-with-changes", "--out", str(tmp_path / "run"))
    assert again.returncode == 0
    assert f"the run is complete ({saved} steps)" in again.stdout


def test_nproc_inside_torchrun_is_refused(overrides, tmp_path):
    result = mb(
        "pretrain",
        *overrides,
        "--nproc",
        "2",
        environment={"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
    )
    assert result.returncode == 2
    assert "--nproc: is given inside torchrun, mpirun or srun" in result.stderr


@pytest.mark.slow
def test_plain_torchrun_runs_the_same_and_prints_an_error_once(overrides, tmp_path):
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "mb_trainer",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "run"

    def start(*words):
        command = [*torchrun, "pretrain", *overrides, *words, f"--out={out}"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert start().returncode == 0
    assert len(losses(out)) == 20
    refused = start("train.train_itres=3")
    assert refused.returncode == 1
    assert refused.stderr.count("error: command line: train.train_itres: no such field") == 1


@pytest.mark.slow
def test_a_run_folder_that_is_moved_is_reported_and_made_again_by_several_ranks(overrides, tmp_path):
    out, moved = tmp_path / "run", tmp_path / "moved"
    process = start_mb("pretrain", *overrides, *ENDLESS, "--nproc", "2", "--out", str(out))
    wait_for_steps(out, 3)
    out.rename(moved)
    read_until(process, f"warning: {out}: was deleted or moved while the run trains")
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=240)
    assert process.returncode == 0, complaints
    assert "lines were not written" not in complaints
    assert {*losses(out)} == {*range(1, max(losses(out)) + 1)}
    assert max(losses(moved)) < max(losses(out))
    log = (out / "log.txt").read_text()
    assert "loading Megatron Core" in log
    assert f"stopped after step {max(losses(out))}" in log
    assert (out / "run_config.yaml").read_text() == (moved / "run_config.yaml").read_text()
    (stopped,) = (out / "checkpoints").glob("iter_*")
    assert stopped.name == f"iter_{max(losses(out)):07d}"
