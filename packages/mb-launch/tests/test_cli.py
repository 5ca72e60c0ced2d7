"""Program `mb-launch`: scripts, clusters and exit codes; without Slurm."""

import sys

import pytest

pytest.importorskip("typer", reason="needs mb-launch[cli]")

from typer.testing import CliRunner

from mb_launch.cli import app as cli
from mb_launch.cli.app import app


def mb_launch(*words, program=app):
    done = CliRunner().invoke(program, list(words))
    return done.exit_code, done.stdout, done.stderr


def test_the_script_is_printed_and_nothing_is_queued(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = mb_launch("slurm", "--nodes", "2", "--script-only", "--", "python", "train.py")
    assert (code, err) == (0, "")
    assert out.startswith("#!/bin/bash\n")
    assert f"--output={tmp_path}/runs/run/slurm/%j.log" in out
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_holds_defaults_that_options_replace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusters.yaml").write_text(
        "hopper:\n  partition: batch\n  nodes: 4\n  env: [A=1]\n  time: 12:00:00\n"
    )
    code, out, _ = mb_launch("slurm", "--cluster=hopper", "--nodes=2", "--script-only", "--", "x")
    assert code == 0
    assert "#SBATCH --partition=batch\n" in out
    assert "#SBATCH --nodes=2\n" in out
    assert "#SBATCH --time=12:00:00\n" in out
    assert "export A=1\n" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "clusters.yaml: cannot be read"),
        ("a: [", "clusters.yaml: cannot be read"),
        ("a: {time: !!int x}", "clusters.yaml: cannot be read"),
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


def test_a_file_of_clusters_without_a_cluster_is_rejected():
    code, _, err = mb_launch("slurm", "--clusters=other.yaml", "--script-only", "--", "x")
    assert code == 2
    assert "--clusters: other.yaml has no effect without --cluster." in err


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
