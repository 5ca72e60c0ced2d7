"""`mb launch` on a real Slurm of two nodes on this machine: preempted, queued again, resumed bit for bit."""

import sys
import time
from pathlib import Path

import pytest
from runs import events, losses, mb

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "mb-launch" / "tests"))

import local_slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    reason = local_slurm.missing_programs()
    if reason is not None:
        pytest.skip(reason)
    cluster = local_slurm.LocalSlurm(tmp_path_factory.mktemp("slurm"))
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def test_a_run_that_is_preempted_resumes_bit_for_bit(slurm, overrides, tmp_path):
    words = [
        *overrides,
        "train.train_iters=1200",
        "checkpoint.save_interval=5000",
        "logger.log_interval=20",
        "train.micro_batch_size=4",
        "validation.eval_iters=0",
    ]
    out = tmp_path / "run"
    path = f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"
    environment = {"SLURM_CONF": slurm.environment["SLURM_CONF"], "PATH": path}
    # The names of the nodes are not resolved on this machine.
    options = ["--nodes=2", "--env=MASTER_ADDR=127.0.0.1", f"--env=PATH={path}", f"--run={out}"]
    rejected = mb(
        "launch",
        "slurm",
        *options,
        "--",
        "pretrain",
        *words,
        "train.micro_batch_size=3",
        environment=environment,
    )
    assert rejected.returncode == 1
    assert "nothing is queued" in rejected.stderr
    assert not out.exists()
    queued = mb("launch", "slurm", *options, "--", "pretrain", *words, environment=environment)
    assert queued.returncode == 0, queued.stderr
    job = int(queued.stdout.split()[1])
    until = time.monotonic() + 120
    while not (out / "metrics.jsonl").is_file() or len(losses(out)) < 2:
        assert time.monotonic() < until, slurm.run("scontrol", "show", "job", str(job))
        time.sleep(0.1)
    urgent = slurm.run(
        "sbatch",
        "--parsable",
        "--partition=urgent",
        "--nodes=2",
        "--exclusive",
        "--output=/dev/null",
        "--wrap",
        "true",
    )
    slurm.wait(int(urgent), "COMPLETED", seconds=90)
    assert slurm.wait(job, "COMPLETED", "FAILED", seconds=120) == "COMPLETED"
    assert mb("pretrain", *words, f"--out={tmp_path / 'whole'}", "--nproc=2").returncode == 0
    assert losses(out) == losses(tmp_path / "whole")
    assert [name for name, _ in events(out) if name in ("start", "resume", "stop")] == [
        "start",
        "stop",
        "resume",
        "stop",
    ]


def test_an_array_of_jobs_builds_the_shards_of_one_process(slurm, tmp_path):
    lines = tmp_path / "text.jsonl"
    lines.write_text("".join(f'{{"text": "document {number}"}}\n' for number in range(400)))
    environment = {"SLURM_CONF": slurm.environment["SLURM_CONF"], "PATH": slurm.environment["PATH"]}
    words = ["data", "build", "--input", str(lines), "--tokenizer", "ByteTokenizer", "--shard-size", "2KB"]
    array = ["--engine", "slurm", "--workers", "3", "--slurm-option=--partition=batch"]
    built = mb(*words, *array, "--out", str(tmp_path / "array"), environment=environment)
    assert built.returncode == 0, built.stderr
    assert mb(*words, "--out", str(tmp_path / "here")).returncode == 0
    for name in ["idx", *(f"shards/{path.name}" for path in (tmp_path / "here.shards").glob("*.bin"))]:
        assert (tmp_path / f"array.{name}").read_bytes() == (tmp_path / f"here.{name}").read_bytes()
    (tmp_path / "array.shards" / "shard-00002.bin").unlink()
    again = mb(*words, *array, "--out", str(tmp_path / "array"), environment=environment)
    assert ", of which" in again.stdout
    assert (tmp_path / "array.shards" / "shard-00002.bin").exists()
