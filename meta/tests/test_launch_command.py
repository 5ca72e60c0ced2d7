"""`mb launch`: the check before a launch, the run folder, and tests of CloudAI; without Slurm."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mb_trainer.cli.app import app
from mb_trainer.commands import launch
from mb_trainer.commands.megatron_run import MegatronRun

TEST = """
name = "small"
extra_container_mounts = ["/data:/data"]
[cmd_args]
gpu_type = "h100"
num_gpus = 16
gpus_per_node = 8
time_limit = "00:30:00"
container_image = "image"
model_family_name = "llama"
model_recipe_name = "llama31_8b"
hf_token = "hf_in_the_file"
compute_dtype = "fp8_cs"
tp = 2
vp = 1
gb = 128
seq_length = 4096
recompute_modules = "core_attn,mlp"
enable_vboost = false
[extra_env_vars]
NCCL_DEBUG = "WARN"
[extra_cmd_args]
"train.eval_interval" = "5"
"~model.foo" = ""
[[git_repos]]
url = "https://github.com/NVIDIA-NeMo/Megatron-Bridge.git"
commit = "r0.3.0"
"""


def mb(*words):
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def checks(monkeypatch):
    """Return the commands that examined the run; they accept it."""
    found = []

    def run(command, **_options):
        found.append(command)
        return subprocess.CompletedProcess(command, 0, '{"predicted": null, "saves": null}', "")

    monkeypatch.setattr(launch.subprocess, "run", run)
    return found


def test_the_arguments_are_examined_first(checks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "slurm", "--nodes=2", "--gpus-per-node=8", "--gpu=h100", "--script-only", "--"]
    words += ["pretrain", "big", "--trust", "old", "--no-numa-binding", "train.train_iters=5"]
    code, out, err = mb(*words)
    assert (code, err) == (0, "")
    options = ["--world-size=16", "--gpu=h100"]
    program = [sys.executable, "-m", "mb_trainer"]
    assert checks == [[*program, "plan", *options, "--json", "--", "big", "train.train_iters=5"]]
    assert (
        f"mb pretrain --out={tmp_path}/runs/big big --trust old --no-numa-binding train.train_iters=5" in out
    )


@pytest.mark.parametrize("gpu", [[], ["--gpu=h100"]])
def test_nothing_is_queued_that_the_check_rejects(tmp_path, monkeypatch, gpu):
    monkeypatch.chdir(tmp_path)

    def reject(command, **_options):
        problem = "error: [V001] wrong\n" if "check" in command else ""
        return subprocess.CompletedProcess(command, 1, "", problem)

    monkeypatch.setattr(launch.subprocess, "run", reject)
    code, _, err = mb("launch", "slurm", "--nodes=2", *gpu, "--", "pretrain")
    assert code == 1
    assert "2 nodes x 1 ranks: the check before the launch rejects the run, and nothing is queued" in err
    assert "[V001] wrong" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample"], "sample: cannot be launched. Write pretrain or finetune after --"),
        (["pretrain", "--nproc", "2"], "--nproc: is given, but the launcher starts the ranks"),
    ],
)
def test_other_commands_of_the_program_are_rejected(checks, words, message):
    code, _, err = mb("launch", "slurm", "--", *words)
    assert code == 2
    assert message in err
    assert checks == []


def test_the_run_folder_is_named_once(checks):
    code, _, err = mb("launch", "slurm", "--run=a", "--", "pretrain", "--out=b")
    assert code == 2
    assert "--run: a is given, and the command has --out b. Leave out --run." in err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--resume-with-changes", "moe_tiny"], "moe_tiny"),
        (["--config", "x.yaml", "a.b=1", "runs/mine.py:build"], "mine"),
        (["--import", "own", "--trust", "/data/old", "moe_tiny"], "moe_tiny"),
        (["a.b=1", "~a.c=2"], "gpt_tiny"),
        (["--from-megatron-lm", "/data/gpt", "a.b=1"], "gpt"),
        (["--allow-oom", "--", "moe_tiny"], "moe_tiny"),
    ],
)
def test_the_run_folder_is_that_of_the_command(checks, monkeypatch, tmp_path, words, name):
    monkeypatch.chdir(tmp_path)
    taken = MegatronRun(arguments=("megatron_lm.yaml",), out=tmp_path, lines=())
    monkeypatch.setattr(launch, "take_over", lambda folder, **_: taken)
    code, out, err = mb("launch", "slurm", "--script-only", "--", "pretrain", *words)
    assert (code, err) == (0, "")
    assert f"mb pretrain --out={tmp_path}/runs/{name} " in out


def test_the_check_has_the_options_of_the_command(checks, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    environments = []

    def run(command, *, env, **_options):
        environments.append(env)
        checks.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(launch.subprocess, "run", run)
    words = ["--allow-oom", "--config", "a.yaml", "--config=b.yaml", "--import", "own", "moe_tiny", "a.b=1"]
    assert mb("launch", "slurm", "--script-only", "--", "pretrain", *words)[0] == 0
    options = ["--world-size=1", "--config=a.yaml", "--config=b.yaml", "--import=own"]
    assert checks == [[sys.executable, "-m", "mb_trainer", "check", *options, "--", "moe_tiny", "a.b=1"]]
    assert environments[0]["MB_ALLOW_OOM"] == "1"


def test_an_unknown_option_of_the_command_is_rejected(checks):
    code, _, err = mb("launch", "slurm", "--", "pretrain", "--trusted", "a")
    assert code == 2
    assert "No such option" in err
    assert checks == []


def test_a_run_of_megatron_lm_is_checked_as_it_is_taken_over(checks, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = []

    def take_over(folder, **options):
        given.append((folder, options))
        return MegatronRun(arguments=("runs/x/megatron_lm.yaml",), out=tmp_path, lines=())

    monkeypatch.setattr(launch, "take_over", take_over)
    words = ["--from-megatron-lm", "/data/gpt", "--script=a.sh", "--set", "A=1", "--ignore-unknown", "a.b=1"]
    code, out, _ = mb("launch", "slurm", "--script-only", "--", "pretrain", *words)
    assert code == 0
    folder, options = given[0]
    assert str(folder) == "/data/gpt"
    assert options == {
        "script": Path("a.sh"),
        "variables": ["A=1"],
        "ignore_unknown": True,
        "out": tmp_path / "runs" / "gpt",
        "overrides": ("a.b=1",),
    }
    assert checks[0][-2:] == ["runs/x/megatron_lm.yaml", "a.b=1"]
    assert f"mb pretrain --out={tmp_path}/runs/gpt --from-megatron-lm /data/gpt --script=a.sh" in out


def test_a_test_is_the_command_and_the_job_of_slurm(checks, tmp_path, monkeypatch):
    pytest.importorskip("pydantic", reason="needs mb-launch[cloudai]")
    from mb_launch.cloudai.slurm_run import read_test, trainer_arguments

    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.toml").write_text(TEST)
    arguments = trainer_arguments(read_test(tmp_path / "test.toml"))

    def script(*words):
        done = CliRunner().invoke(app, ["launch", "slurm", "--account=a", "--script-only", *words])
        assert (done.exit_code, done.stderr) == (0, "")
        return done.stdout

    written = script("--cloudai=test.toml", "--", "train.train_iters=7")
    flags = ["--nodes=2", "--gpus-per-node=8", "--gpu=h100", "--job-name=small", "--time=00:30:00"]
    flags += [
        "--container-image=image",
        "--container-mounts=/data:/data",
        "--env=NCCL_DEBUG=WARN",
        "--env=HF_TOKEN",
    ]
    assert written == script(*flags, "--", *arguments, "train.train_iters=7")
    assert checks[:1] == checks[1:]
    assert checks[0][:6] == [sys.executable, "-m", "mb_trainer", "plan", "--world-size=16", "--gpu=h100"]
    assert "hf_in_the_file" not in written


@pytest.mark.skipif(importlib.util.find_spec("nemo_run") is None, reason="needs mb-launch[nemo-run]")
def test_the_check_comes_before_a_launch_through_nemo_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def reject(command, **_options):
        return subprocess.CompletedProcess(command, 1, "", "error: [V001] wrong\n")

    monkeypatch.setattr(launch.subprocess, "run", reject)
    code, _, err = mb("launch", "nemo-run", "--executor=local", "--set=ntasks_per_node=2", "--", "pretrain")
    assert code == 1
    assert "1 nodes x 2 ranks: the check before the launch rejects the run, and nothing is queued" in err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mb_launch.cloudai.slurm_run", None)
    code, _, err = mb("launch", "slurm", "--cloudai=test.toml")
    assert code == 2
    assert 'pip install "mb-launch[cloudai]"' in err


def planned(monkeypatch, *, step_seconds, write_seconds, fits=True):
    """Let checks accept every run, and plans predict these times."""

    def run(command, **_options):
        plan = {"predicted": {"step_seconds": step_seconds}, "saves": {"write_seconds": write_seconds}}
        return subprocess.CompletedProcess(command, int("plan" in command and not fits), json.dumps(plan), "")

    monkeypatch.setattr(launch.subprocess, "run", run)


SCRIPT = ["launch", "slurm", "--nodes=2", "--gpus-per-node=8", "--gpu=h100", "--ft-launcher", "--script-only"]


@pytest.mark.parametrize("fits", [True, False])
def test_a_signal_leaves_time_for_two_steps_and_a_save(tmp_path, monkeypatch, fits):
    """2 x 29 + 1.5 x 200 + 30 seconds; a save and a load may take three times as long."""
    monkeypatch.chdir(tmp_path)
    planned(monkeypatch, step_seconds=29.0, write_seconds=200.0, fits=fits)
    code, out, err = mb(*SCRIPT, "--", "pretrain", "big")
    assert code == 0
    assert "#SBATCH --signal=B:USR1@388\n" in out
    assert "=setup:1200,step:180,checkpointing:600" in out
    assert "--signal-seconds=388: two steps of 29 s and a save of 200 s, as predicted" in err


def test_a_short_stop_and_a_lead_of_the_user_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned(monkeypatch, step_seconds=1.0, write_seconds=2.0)
    assert "--signal=B:USR1@120\n" in mb(*SCRIPT, "--", "pretrain", "big")[1]
    planned(monkeypatch, step_seconds=29.0, write_seconds=200.0)
    assert "--signal=B:USR1@60\n" in mb(*SCRIPT, "--signal-seconds=60", "--", "pretrain", "big")[1]
