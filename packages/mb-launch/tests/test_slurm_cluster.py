"""Jobs on a real Slurm of two nodes on this machine: ranks, logs, preemption, time limit, chains, cancellation."""

import importlib.util
import shutil
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs mb-launch[cli]")

import local_slurm
from typer.testing import CliRunner

from mb_launch.cli.app import app
from mb_launch.slurm.queue import read_jobs

WORK = Path(__file__).with_name("slurm_work.py")
SOURCE = Path(__file__).parents[1] / "src"
pytestmark = pytest.mark.slow


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


@pytest.fixture
def launch(slurm, tmp_path, monkeypatch):
    """Return a function that runs mb-launch and returns what it prints."""
    for name, value in {**slurm.environment, "PYTHONPATH": str(SOURCE)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, done.output
        return done.output

    return run


def work(folder, steps, seconds=0.05):
    return ["--", sys.executable, str(WORK), str(folder), str(steps), str(seconds)]


def undisturbed(rank, steps):
    value = 1.0
    for _ in range(steps):
        value = value * 1.0001 + rank
    return f"{value!r} {steps}"


def rank_log(folder, job, rank):
    return (folder / "slurm" / f"{job}-rank{rank}.log").read_text()


def test_two_nodes_with_two_ranks_each(slurm, launch, tmp_path):
    run = tmp_path / "run"
    printed = launch("slurm", "--nodes=2", "--tasks-per-node=2", f"--run={run}", *work(tmp_path, 3))
    (job,) = read_jobs(run)
    assert printed.splitlines()[0] == f"queued: {job} (2 nodes, 4 ranks)"
    assert slurm.wait(job, "COMPLETED", "FAILED") == "COMPLETED"
    nodes = {
        line.split()[5]
        for rank in range(4)
        for line in rank_log(run, job, rank).splitlines()
        if " on " in line
    }
    assert nodes == {"alpha", "beta"}
    assert [(tmp_path / f"state_{rank}").read_text() for rank in range(4)] == [
        undisturbed(r, 3) for r in range(4)
    ]
    assert launch("status", str(run)).startswith(f"{job} COMPLETED ")
    assert "rank 3 of 4 on " in launch("logs", str(run), "--rank=3")
    assert "no job of this run" in launch("cancel", str(run))


def test_nemo_run_submits_the_same_ranks(slurm, launch, nemo_run_home, tmp_path):
    if importlib.util.find_spec("nemo_run") is None:
        pytest.skip("needs mb-launch[nemo-run]")
    run = tmp_path / "run"
    settings = ["--set=account=any", "--set=nodes=2", "--set=ntasks_per_node=2"]
    printed = launch("nemo-run", "--executor=slurm", *settings, f"--run={run}", *work(tmp_path, 3))
    (job,) = read_jobs(run)
    assert printed.splitlines()[0] == f"queued: slurm_tunnel://nemo_run/{job} (2 nodes, 4 ranks)"
    assert slurm.wait(job, "COMPLETED", "FAILED") == "COMPLETED", launch("logs", str(run))
    assert [(tmp_path / f"state_{rank}").read_text() for rank in range(4)] == [
        undisturbed(r, 3) for r in range(4)
    ]
    assert launch("status", str(run)).startswith(f"{job} COMPLETED ")
    assert "rank 3 of 4 on beta" in launch("logs", str(run), "--rank=3")


def test_ft_launcher_starts_two_ranks_on_each_of_two_nodes(slurm, launch, tmp_path):
    if shutil.which("ft_launcher") is None:
        pytest.skip("ft_launcher of nvidia-resiliency-ext is not installed")
    run = tmp_path / "run"
    options = ["--nodes=2", "--tasks-per-node=2", "--ft-launcher", "--max-restarts=0", f"--run={run}"]
    launch("slurm", *options, *work(tmp_path, 3))
    (job,) = read_jobs(run)
    assert slurm.wait(job, "COMPLETED", "FAILED", seconds=240) == "COMPLETED", launch("logs", str(run))
    logs = "".join(rank_log(run, job, node) for node in range(2))
    nodes = {line.split()[5] for line in logs.splitlines() if " on " in line and line.startswith("rank ")}
    assert nodes == {"alpha", "beta"}
    assert [(tmp_path / f"state_{rank}").read_text() for rank in range(4)] == [
        undisturbed(rank, 3) for rank in range(4)
    ]


def test_a_preempted_job_saves_and_resumes(slurm, launch, tmp_path):
    run = tmp_path / "run"
    launch("slurm", "--nodes=2", f"--run={run}", *work(tmp_path, 200))
    (job,) = read_jobs(run)
    slurm.wait(job, "RUNNING")
    wait_for(run / "slurm" / f"{job}-rank1.log")
    urgent = slurm.run(
        "sbatch",
        "--parsable",
        "-p",
        "urgent",
        "-N2",
        "--exclusive",
        "--output=/dev/null",
        "--wrap",
        "sleep 1",
    )
    slurm.wait(int(urgent), "COMPLETED")
    assert slurm.wait(job, "COMPLETED", "FAILED", seconds=150) == "COMPLETED"
    for rank in (0, 1):
        log = rank_log(run, job, rank)
        assert log.count(f"rank {rank} of 2 on ") == 2
        assert 0 < int(log.split("ends at step ")[1].split()[0]) < 200
        assert (tmp_path / f"state_{rank}").read_text() == undisturbed(rank, 200)


def test_a_job_that_reaches_its_time_limit_enters_the_queue_again(slurm, launch, tmp_path):
    run = tmp_path / "run"
    launch("slurm", "--nodes=2", "--time=1", "--signal-seconds=57", f"--run={run}", *work(tmp_path, 400, 0.1))
    (job,) = read_jobs(run)
    assert slurm.wait(job, "COMPLETED", "FAILED", "TIMEOUT", seconds=240) == "COMPLETED"
    for rank in (0, 1):
        assert rank_log(run, job, rank).count(f"rank {rank} of 2 on ") >= 2
        assert (tmp_path / f"state_{rank}").read_text() == undisturbed(rank, 400)


def test_the_jobs_of_a_chain_run_one_after_another(slurm, launch, tmp_path):
    run = tmp_path / "run"
    launch("slurm", "--chain=2", "--no-requeue", f"--run={run}", *work(tmp_path, 2))
    first, second = read_jobs(run)
    assert slurm.wait(second, "COMPLETED", "FAILED") == "COMPLETED"
    assert "at step 0" in rank_log(run, first, 0)
    assert "at step 2" in rank_log(run, second, 0)


def test_a_cancelled_job_does_not_enter_the_queue_again(slurm, launch, tmp_path):
    run = tmp_path / "run"
    launch("slurm", f"--run={run}", *work(tmp_path, 1000))
    (job,) = read_jobs(run)
    slurm.wait(job, "RUNNING")
    wait_for(run / "slurm" / f"{job}-rank0.log")
    assert launch("cancel", str(run)) == f"cancelled: {job}\n"
    slurm.wait(job, "CANCELLED")
    time.sleep(2)
    assert slurm.state(job) == "CANCELLED"


def test_a_variable_is_passed_by_name_and_its_value_is_in_no_file(slurm, launch, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "very-secret")
    run = tmp_path / "run"
    command = "import os; print(os.environ['SOME_API_KEY'] == 'very-' + 'secret', os.environ['OTHER'])"
    launch(
        "slurm", "--env=SOME_API_KEY", "--env=OTHER=1", f"--run={run}", "--", sys.executable, "-c", command
    )
    (job,) = read_jobs(run)
    slurm.wait(job, "COMPLETED")
    assert rank_log(run, job, 0) == "True 1\n"
    assert not [file for file in run.rglob("*") if file.is_file() and "very-secret" in file.read_text()]


def wait_for(file, seconds=30):
    until = time.monotonic() + seconds
    while not (file.exists() and " on " in file.read_text()):
        assert time.monotonic() < until, file
        time.sleep(0.1)
