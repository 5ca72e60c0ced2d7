"""Options of Slurm jobs, their script, the file of clusters, and Slurm's commands, without Slurm."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mb_launch.errors import JobNotFoundError, SlurmCommandError, SlurmJobError
from mb_launch.secret_names import is_secret_variable, secret_argument
from mb_launch.slurm.job import SlurmJob, SlurmRun
from mb_launch.slurm.queue import cancel, log_files, read_jobs, read_status, run_slurm, submit
from mb_launch.slurm.script import gpu_environment, sbatch_script

RUN = SlurmRun(command=["python", "train.py"], folder=Path("/data/run"), work_dir=Path("/home/me"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodes": 0}, "nodes: 0 is not a whole number of at least 1"),
        ({"gpus_per_node": True}, "gpus_per_node: True is not a whole number of at least 0"),
        ({"chain": "2"}, "chain: '2' is not a whole number"),
        ({"ft_launcher": "yes"}, "ft_launcher: 'yes' is neither true nor false"),
        ({"max_restarts": -1}, "max_restarts: -1 is not a whole number of at least 0"),
        ({"max_restarts": 2}, "max_restarts: 2 has no effect without ft_launcher"),
        ({"requeue": 1}, "requeue: 1 is neither true nor false"),
        (
            {"time": "tomorrow"},
            "time: 'tomorrow' cannot be written to an sbatch script. Write minutes, HOURS",
        ),
        ({"partition": "a b"}, "partition: 'a b' cannot be written"),
        ({"account": 3}, "account: 3 cannot be written"),
        ({"signal_seconds": 70_000}, "signal_seconds: 70000 is more than Slurm supports"),
        ({"container_mounts": "/a:/b"}, "container_mounts: '/a:/b' has no effect without an image"),
        ({"env": "A=1"}, "env: 'A=1' is not a list of texts"),
        ({"env": ["1A=2"]}, "env: '1A' is not a variable"),
        ({"env": ["HF_TOKEN=hello"]}, r"env: 'HF_TOKEN=\*\*\*' looks like a secret.*write --env HF_TOKEN"),
        ({"sbatch": ["exclusive"]}, "sbatch: 'exclusive' is not an option of sbatch"),
        ({"sbatch": ["--comment=a#b"]}, "sbatch: '--comment=a#b' is not an option of sbatch"),
        ({"sbatch": ["--nodes=4"]}, "sbatch: '--nodes=4' would replace nodes.*Set nodes"),
        ({"sbatch": ["--no-requeue"]}, "sbatch: '--no-requeue' would replace requeue"),
        (
            {"sbatch": ["--comment='a'"]},
            "is not an option of sbatch. Write --NAME or --NAME=VALUE, without spaces, quotes",
        ),
    ],
)
def test_bad_values_are_rejected(values, message):
    with pytest.raises(SlurmJobError, match=message):
        SlurmJob(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"command": []}, "command: is missing. Write it after --"),
        ({"command": ["x", "logger.comet_api_key=abc"]}, "command: logger.comet_api_key looks like a secret"),
        ({"command": ["x", "--token", "abc"]}, "command: --token looks like a secret"),
        ({"command": ["x", "AKIAABCDEFGHIJKLMNOP"]}, "command: AKIA... looks like a secret"),
        ({"folder": Path("/my run")}, "run folder: '/my run' has a space"),
        ({"work_dir": Path("/a,b")}, "working directory: '/a,b' has a space, a quote or one of"),
        ({"folder": Path("/runs/run#1")}, "run folder: '/runs/run#1' has a space, a quote or one of % "),
        ({"folder": Path("/it's")}, "run folder: .* has a space, a quote or one of % "),
        ({"work_dir": Path('/a"b')}, "working directory: '/a\"b' has a space, a quote"),
    ],
)
def test_bad_runs_are_rejected(values, message):
    with pytest.raises(SlurmJobError, match=message):
        SlurmRun(**{"command": ["x"], "folder": Path("/run"), "work_dir": Path("/"), **values})


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("WANDB_API_KEY", "abc", True),
        ("optimizer.pat", "abc", True),
        ("OTHER", "hf_abcdefghijklmnopqrst", True),
        ("eos_token", "abc", False),
        ("max_token", "12", False),
        ("logger.comet_api_key", "null", False),
        ("lr", "1", False),
    ],
)
def test_secrets_are_recognized_by_name_or_form(name, value, secret):
    assert is_secret_variable(name, value) == secret
    assert (secret_argument([f"{name}={value}"]) is not None) == secret


def test_the_script_is_valid_bash_and_starts_the_command_unchanged(tmp_path):
    job = SlurmJob(
        nodes=2,
        gpus_per_node=8,
        cpus_per_task=12,
        partition="batch",
        account="me",
        qos="high",
        time="04:00:00",
        env=["A=it's", "WANDB_API_KEY"],
        sbatch=["--exclusive"],
        container_image="nvcr.io#nvidia/pytorch:26.06-py3",
        container_mounts="/data:/data",
    )
    run = SlurmRun(command=["mb", "pretrain", "a b"], folder=Path("/data/run"), work_dir=Path("/home/me"))
    script = sbatch_script(job, run)
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    options = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
    assert options == [
        "--job-name=run",
        "--nodes=2",
        "--ntasks-per-node=8",
        "--gpus-per-node=8",
        "--cpus-per-task=12",
        "--partition=batch",
        "--account=me",
        "--qos=high",
        "--time=04:00:00",
        "--chdir=/home/me",
        "--output=/data/run/slurm/%j.log",
        "--open-mode=append",
        "--dependency=singleton",
        "--requeue",
        "--signal=B:USR1@120",
        "--export=ALL,WANDB_API_KEY",
        "--exclusive",
    ]
    assert "export A='it'\"'\"'s'" in script
    srun = script.partition("\nsrun")[2].partition(" &\n")[0]
    assert "--container-mounts=/home/me:/home/me,/data/run:/data/run,/data:/data" in srun
    assert srun.endswith("mb pretrain 'a b'")


SLURM = {
    "srun": "echo $$ > ranks; touch started; until [ -e signalled ]; do sleep 0.05; done",
    # returns when the ranks have ended
    "scancel": 'touch signalled; for _ in $(seq 600); do kill -0 "$(cat ranks)" || exit 0; sleep 0.05; done',
    "scontrol": 'echo "$*" >> requests; echo " JobState=RUNNING PreemptTime=None "',
}
"""Commands of Slurm as shell scripts."""


def test_ranks_that_end_while_they_are_signalled_have_saved_and_are_queued_again(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in SLURM.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(sbatch_script(SlurmJob(), RUN))
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    with subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=environment) as script:
        while script.poll() is None and not (tmp_path / "started").exists():
            time.sleep(0.05)
        script.send_signal(signal.SIGUSR1)
        assert script.wait(timeout=120) == 0
    assert "requeue 7" in (tmp_path / "requests").read_text().splitlines()


def test_without_requeue_and_signal_nothing_is_requeued():
    script = sbatch_script(SlurmJob(requeue=False, signal_seconds=0), RUN)
    assert "--no-requeue" in script
    assert "--signal=B" not in script
    assert "scontrol requeue" not in script


class FakeSlurm:
    """Commands of Slurm with fixed answers."""

    def __init__(self, answers):
        self.answers, self.commands = answers, []

    def __call__(self, command):
        self.commands.append(list(command))
        answer = self.answers[command[0]]
        return answer.pop(0) if isinstance(answer, list) else answer


def test_numbers_of_queued_jobs_are_kept_in_the_run_folder(tmp_path):
    run = SlurmRun(command=["x"], folder=tmp_path / "run", work_dir=tmp_path)
    slurm = FakeSlurm({"sbatch": ["7;cluster\n", "8\n"]})
    assert submit(SlurmJob(chain=2), run, runner=slurm) == [7, 8]
    assert read_jobs(run.folder) == [7, 8]
    with (run.folder / "slurm" / "jobs.jsonl").open("a") as file:
        file.write('{"job": 9, "ti')  # the disk was full
    assert read_jobs(run.folder) == [7, 8]
    assert slurm.commands == [["sbatch", "--parsable", str(run.logs / "job.sh")]] * 2
    assert (run.logs / "job.sh").read_text() == sbatch_script(SlurmJob(chain=2), run)
    with pytest.raises(SlurmJobError, match="env: SOME is not set in this shell"):
        submit(SlurmJob(env=["SOME"]), run, environment={}, runner=slurm)


def test_states_are_read_and_active_jobs_cancelled():
    running = "JobId=8 JobName=x JobState=RUNNING Reason=None Restarts=1 NodeList=a,b RunTime=00:00:05\n"
    slurm = FakeSlurm({"scontrol": running, "scancel": ""})
    assert str(read_status(8, runner=slurm)) == "8 RUNNING RunTime=00:00:05 Restarts=1 NodeList=a,b"
    assert cancel([8], runner=slurm) == [8]
    assert slurm.commands[-1] == ["scancel", "8"]
    done = FakeSlurm({"scontrol": "JobId=8 JobState=COMPLETED Reason=None\n"})
    assert cancel([8], runner=done) == []


def test_a_job_that_slurm_has_forgotten_and_one_that_cannot_be_read():
    def forgotten(_command):
        raise SlurmCommandError("scontrol: slurm_load_jobs error: Invalid job id specified")

    assert read_status(3, runner=forgotten).state == "UNKNOWN"

    def unreachable(_command):
        raise SlurmCommandError("scontrol: cannot contact slurmctld")

    with pytest.raises(SlurmCommandError, match="cannot contact"):
        read_status(3, runner=unreachable)


def test_logs_of_the_newest_job_that_has_some(tmp_path):
    folder = tmp_path / "slurm"
    with pytest.raises(JobNotFoundError, match=r"holds no slurm/jobs.jsonl: no Slurm job was queued"):
        read_jobs(tmp_path)
    folder.mkdir()
    (folder / "jobs.jsonl").write_text("".join(json.dumps({"job": job}) + "\n" for job in (7, 8)))
    with pytest.raises(JobNotFoundError, match=r"holds no log. A job writes its logs when it has started"):
        log_files(tmp_path)
    for name in ("7.log", "7-rank10.log", "7-rank2.log"):
        (folder / name).touch()
    assert [file.name for file in log_files(tmp_path)] == ["7.log", "7-rank2.log", "7-rank10.log"]
    assert [file.name for file in log_files(tmp_path, rank=2)] == ["7-rank2.log"]
    with pytest.raises(JobNotFoundError, match="holds no log of rank 5"):
        log_files(tmp_path, rank=5)


def test_commands_of_slurm_that_are_missing_or_fail():
    with pytest.raises(SlurmCommandError, match=r"no-such-command: is not installed.*--script-only"):
        run_slurm(["no-such-command"])
    with pytest.raises(SlurmCommandError, match=r"ls: .*No such file"):
        run_slurm(["ls", "/no/such/file"])
    assert run_slurm(["echo", "x"]) == "x\n"


def test_the_environment_of_the_gpu_is_set_unless_the_user_sets_it():
    script = sbatch_script(SlurmJob(gpu="gb200", env=["NCCL_NVLS_ENABLE=1"]), RUN)
    assert re.findall(r"^export (NCCL\w+=.*)$", script, re.MULTILINE) == [
        "NCCL_NVLS_ENABLE=1",
        'NCCL_NET_GDR_LEVEL="${NCCL_NET_GDR_LEVEL-PHB}"',
        'NCCL_NET_GDR_C2C="${NCCL_NET_GDR_C2C-1}"',
    ]
    assert gpu_environment("NVIDIA H100 80GB HBM3") == gpu_environment("h100")
    assert "NCCL_NET_GDR_C2C" not in gpu_environment("h100")
    assert gpu_environment(None) == {}


def test_ft_launcher_starts_the_ranks_of_each_node():
    script = sbatch_script(SlurmJob(nodes=2, tasks_per_node=4, ft_launcher=True, max_restarts=1), RUN)
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "#SBATCH --ntasks-per-node=1\n" in script
    srun = script.partition("\nsrun")[2].partition(" &\n")[0]
    assert "ft_launcher" in srun
    assert "--nnodes=2" in srun
    assert "--nproc-per-node=4" in srun
    assert "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420" in srun
    assert srun.endswith("--no-python \\\n    python train.py")
    assert 'if [ "$stopped" = yes ]; then' in script  # it does not end with 0 after a signal


@pytest.mark.parametrize(
    ("settings", "lead", "limits"),
    [
        ({}, 120, "setup:600,step:180,checkpointing:420"),
        ({"save_seconds": 20}, 120, "setup:660,step:180,checkpointing:420"),
        ({"save_seconds": 600}, 660, "setup:2400,step:180,checkpointing:1800"),
        ({"save_seconds": 600, "signal_seconds": 90}, 90, "setup:2400,step:180,checkpointing:1800"),
    ],
)
def test_long_saves_have_time(settings, lead, limits):
    script = sbatch_script(SlurmJob(ft_launcher=True, **settings), RUN)
    assert f"#SBATCH --signal=B:USR1@{lead}\n" in script
    assert f"--ft-param-rank_section_timeouts={limits} " in script
