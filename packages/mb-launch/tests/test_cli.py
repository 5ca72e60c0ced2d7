"""Program `mb-launch`: scripts, clusters, a mounting program with a check, and exit codes; without Slurm."""

import subprocess
import sys

import pytest

pytest.importorskip("typer", reason="needs mb-launch[cli]")

import typer
from typer.testing import CliRunner

from mb_launch.cli import app as cli
from mb_launch.cli import launched_program
from mb_launch.cli.app import app, set_program
from mb_launch.cli.launched_program import LaunchedProgram, option_value, recipe_name, with_run_folder

TRAINER = LaunchedProgram(name="train", module="trainer", default_recipe="small")


def mb_launch(*words, program=app):
    done = CliRunner().invoke(program, list(words))
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def trainer():
    """Return a program that mounts the commands."""
    mounted = typer.Typer()
    mounted.add_typer(app, name="launch")

    @mounted.callback()
    def options(context: typer.Context) -> None:
        set_program(context, TRAINER)

    return mounted


@pytest.fixture
def checks(monkeypatch):
    """Return the commands that the check ran; it accepts them."""
    found = []

    def run(command, **_options):
        found.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(launched_program.subprocess, "run", run)
    return found


def test_the_script_is_printed_and_nothing_is_queued(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = mb_launch("slurm", "--nodes", "2", "--script-only", "--", "python", "train.py")
    assert (code, err) == (0, "")
    assert out.startswith("#!/bin/bash\n")
    assert f"--output={tmp_path}/runs/run/slurm/%j.log" in out
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_holds_defaults_that_options_replace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusters.yaml").write_text("hopper:\n  partition: batch\n  nodes: 4\n  env: [A=1]\n")
    code, out, _ = mb_launch("slurm", "--cluster=hopper", "--nodes=2", "--script-only", "--", "x")
    assert code == 0
    assert "#SBATCH --partition=batch\n" in out
    assert "#SBATCH --nodes=2\n" in out
    assert "export A=1\n" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "clusters.yaml: cannot be read"),
        ("a: [", "clusters.yaml: cannot be read"),
        ("- a", "is not a mapping of clusters"),
        ("hopper:\n  partitoin: x\n", "hopper.partitoin is unknown. Did you mean partition?"),
        ("other:\n  nodes: 1\n", "has no cluster 'hopper'. Known: other."),
        ("hoper:\n  nodes: 1\n", "has no cluster 'hopper'. Did you mean hoper?"),
        ("hopper:\n  nodes: many\n", "nodes: 'many' is not a whole number"),
    ],
)
def test_a_bad_file_of_clusters_is_named(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "clusters.yaml").write_text(text)
    code, _, err = mb_launch("slurm", "--cluster=hopper", "--script-only", "--", "x")
    assert code == 2
    assert message in err


def test_a_mounting_program_checks_its_arguments_first(trainer, checks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "slurm", "--nodes=2", "--gpus-per-node=8", "--gpu=h100", "--script-only", "--"]
    words += ["pretrain", "big", "--trust", "old", "--no-numa-binding", "train.train_iters=5"]
    code, out, err = mb_launch(*words, program=trainer)
    assert (code, err) == (0, "")
    options = ["--world-size=16", "--gpu=h100"]
    assert checks == [[sys.executable, "-m", "trainer", "check", *options, "big", "train.train_iters=5"]]
    assert (
        f"train pretrain --out={tmp_path}/runs/big big --trust old --no-numa-binding train.train_iters=5"
        in out
    )


def test_nothing_is_queued_that_the_check_rejects(trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def reject(command, **_options):
        return subprocess.CompletedProcess(command, 1, "", "error: [V001] wrong\n")

    monkeypatch.setattr(launched_program.subprocess, "run", reject)
    code, _, err = mb_launch("launch", "slurm", "--nodes=2", "--", "pretrain", program=trainer)
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
def test_other_commands_of_the_program_are_rejected(trainer, checks, words, message):
    code, _, err = mb_launch("launch", "slurm", "--", *words, program=trainer)
    assert code == 2
    assert message in err
    assert checks == []


def test_a_file_of_clusters_without_a_cluster_is_rejected():
    code, _, err = mb_launch("slurm", "--clusters=other.yaml", "--script-only", "--", "x")
    assert code == 2
    assert "--clusters: other.yaml has no effect without --cluster." in err


def test_the_run_folder_is_named_once(trainer, checks):
    code, _, err = mb_launch("launch", "slurm", "--run=a", "--", "pretrain", "--out=b", program=trainer)
    assert code == 2
    assert "--run: a is given, and the command has --out b. Leave out --run." in err


def test_errors_have_exit_codes(monkeypatch, tmp_path):
    code, _, err = mb_launch("status", str(tmp_path))
    assert code == 2
    assert "no Slurm job was queued for this run" in err
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    code, _, err = mb_launch("slurm", "--", "x")
    assert code == 1
    assert "sbatch: is not installed on this machine" in err

    def interrupt(_folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "read_jobs", interrupt)
    assert mb_launch("status", str(tmp_path))[0] == 130
    (tmp_path / "file").touch()
    code, _, err = mb_launch("slurm", f"--run={tmp_path}/file", "--", "x")
    assert code == 2
    assert "cannot be used" in err


def test_words_of_a_command():
    assert option_value(["pretrain", "--out", "a"], "--out") == "a"
    assert option_value(["pretrain", "--out=a"], "--out") == "a"
    assert option_value(["pretrain", "--", "--out=a"], "--out") is None
    assert recipe_name(["--config", "x.yaml", "a.b=1", "runs/mine.py:build"], default="d") == "mine"
    assert recipe_name(["a.b=1"], default="d") == "d"
    assert with_run_folder(["pretrain", "--out=a"], "b") == ["pretrain", "--out=a"]


def test_a_missing_extra_is_named(monkeypatch, capsys):
    from mb_launch.__main__ import main

    monkeypatch.setitem(sys.modules, "mb_launch.cli.app", None)
    with pytest.raises(ModuleNotFoundError):
        main()
    monkeypatch.delitem(sys.modules, "mb_launch.cli.app")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert 'pip install "mb-launch[cli]"' in capsys.readouterr().err
