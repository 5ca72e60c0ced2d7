"""Runs through executors of NeMo-Run: the request of a user, what is submitted, and real jobs on this machine."""

import gc
import importlib.util
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs mb-launch[cli]")

from typer.testing import CliRunner

from mb_launch.cli.app import app
from mb_launch.errors import ExecutorFileError, JobNotFoundError
from mb_launch.nemo_run.executor_file import KINDS, read_executor
from mb_launch.nemo_run.jobs import NemoRunJob, read_nemo_run_jobs, record_nemo_run_job
from mb_launch.slurm.job import SlurmJob, SlurmRun
from mb_launch.slurm.script import sbatch_script

WORK = Path(__file__).with_name("slurm_work.py")
installed = pytest.mark.skipif(
    importlib.util.find_spec("nemo_run") is None, reason="needs mb-launch[nemo-run]"
)


@pytest.fixture(autouse=True)
def deleted_experiments():
    """Delete NeMo-Run's experiments in the test that made them: each removes a handler of the root logger then."""
    yield
    gc.collect()


def mb_launch(*words):
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def test_a_file_and_settings_describe_an_executor(tmp_path):
    file = tmp_path / "executor.yaml"
    file.write_text("executor: slurm\naccount: a\nnodes: 2\ntime: 12:00:00\ntunnel: {host: login}\n")
    request = read_executor(str(file), ["nodes=4", "tunnel.user=me"])
    assert (request.kind, request.fields) == (
        "slurm",
        {"account": "a", "nodes": 4, "time": "12:00:00", "tunnel": {"host": "login", "user": "me"}},
    )
    assert read_executor("slurm", ["time=1:30:00"]).fields == {"time": "1:30:00"}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("kubernetes", [], "has the kind 'kubernetes', which is unknown. Known: local, slurm"),
        ("missing.yaml", [], "missing.yaml: cannot be read"),
        ("list.yaml", [], "list.yaml: is not a mapping of fields"),
        ("bad.yaml", [], "bad.yaml: cannot be read"),
        ("missing.py:name", [], "missing.py is not a file"),
        ("code.py:name", ["nodes=2"], "nodes=2 has no effect on code.py:name"),
        ("local", ["nodes"], "'nodes' is not a setting. Write FIELD=VALUE"),
        ("local", ["nodes=["], "'[' is not a value in YAML"),
        ("local", ["nodes=!!bool x"], "'!!bool x' is not a value in YAML"),
        ("local", ["nodes=2", "nodes.x=2"], "nodes.x is set, but nodes is not a mapping"),
        ("local", ["env_vars=x"], "env_vars is not a mapping"),
        ("docker", ["env_vars.WANDB_API_KEY=abc"], "env_vars.WANDB_API_KEY looks like a secret"),
    ],
)
def test_a_bad_request_is_named(tmp_path, monkeypatch, text, settings, message):
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("- a\n")
    Path("bad.yaml").write_text("a: [\n")
    Path("code.py").touch()
    with pytest.raises(ExecutorFileError, match=re.escape(message)):
        read_executor(text, settings)


def test_jobs_are_read_from_the_run_folder(tmp_path):
    assert read_nemo_run_jobs(tmp_path) == []
    job = NemoRunJob(experiment="small_17", job="run", executor="local")
    record_nemo_run_job(tmp_path, job)
    assert read_nemo_run_jobs(tmp_path) == [job]
    record_nemo_run_job(tmp_path, NemoRunJob(experiment="../elsewhere", job="run", executor="local"))
    with pytest.raises(JobNotFoundError, match="is not a name of a job"):
        read_nemo_run_jobs(tmp_path)
    (tmp_path / "nemo_run" / "jobs.jsonl").write_text("[]\n")
    with pytest.raises(JobNotFoundError, match="is not a job of NeMo-Run"):
        read_nemo_run_jobs(tmp_path)


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nemo_run", None)
    monkeypatch.delitem(sys.modules, "mb_launch.nemo_run.executors", raising=False)
    code, _, err = mb_launch("nemo-run", "--executor=local", "--", "x")
    assert code == 2
    assert (
        'nemo-run: needs nemo_run, which is not installed. Install it: pip install "mb-launch[nemo-run]"'
        in err
    )


@installed
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["local", "ntask_per_node=2"],
            "ntask_per_node is unknown to LocalExecutor. Did you mean ntasks_per_node?",
        ),
        (["local", "nodes=two"], "the number of nodes is 'two'"),
        (["slurm"], "NeMo-Run rejects the executor"),
        (["slurm", "account=a", "tunnel.kind=tcp"], "tunnel 'tcp' is unknown. Known: ssh, local."),
        (["slurm", "account=a", "tunnel.host=login"], "tunnel: NeMo-Run rejects it"),
        (["slurm", "account=a", "packager={kind: git, ref_name: x}"], "packager: ref_name is unknown"),
        (["local", "launcher=mpirun"], "launcher 'mpirun' is unknown. Known: torchrun, ft."),
        (["code.py:other"], "the file does not define other"),
        (["code.py:number"], "is a int, not an executor of NeMo-Run"),
    ],
)
def test_a_bad_executor_is_named(nemo_run_home, tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    Path("code.py").write_text("number = 1\n")
    options = [f"--executor={settings[0]}", *(f"--set={setting}" for setting in settings[1:])]
    code, _, err = mb_launch("nemo-run", *options, "--script-only", "--", "x")
    assert code == 2
    assert message in err


@installed
def test_each_kind_has_a_class_of_nemo_run(nemo_run_home):
    from mb_launch.nemo_run.executors import EXECUTORS

    assert (*EXECUTORS,) == KINDS


@installed
def test_the_script_for_slurm_has_the_facts_of_ours(nemo_run_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(
        "executor: slurm\naccount: a\npartition: p\nnodes: 2\nntasks_per_node: 4\ngpus_per_node: 4\n"
        "time: 04:00:00\ncontainer_image: image\ncontainer_mounts: ['/data:/data']\nenv_vars: {NCCL_DEBUG: INFO}\n"
    )
    run = tmp_path / "run"
    command = ["python", "train.py", "text=a b"]
    code, theirs, err = mb_launch(
        "nemo-run", "--executor=cluster.yaml", f"--run={run}", "--script-only", "--", *command
    )
    assert (code, err) == (0, "")
    resources = {"account": "a", "partition": "p", "nodes": 2, "gpus_per_node": 4, "time": "04:00:00"}
    container = {"container_image": "image", "container_mounts": "/data:/data"}
    job = SlurmJob(**resources, **container, env=["NCCL_DEBUG=INFO"])
    ours = sbatch_script(job, SlurmRun(command=command, folder=run, work_dir=tmp_path))

    def options(script):
        return dict(
            line[10:].partition("=")[::2] for line in script.splitlines() if line.startswith("#SBATCH --")
        )

    same = ("account", "partition", "nodes", "ntasks-per-node", "gpus-per-node", "time", "output")
    assert {name: options(theirs)[name] for name in same} == {name: options(ours)[name] for name in same}
    for fact in (
        "export NCCL_DEBUG=INFO",
        f"--output={run}/slurm/%j-rank%t.log",
        "python train.py 'text=a b'",
    ):
        assert fact in ours
        assert fact in theirs
    assert "--container-image image --container-mounts /data:/data," in theirs
    assert f"{tmp_path}:{tmp_path}" in theirs
    assert not run.exists()


@installed
def test_two_ranks_on_this_machine_stop_and_resume(nemo_run_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
    launch = ["nemo-run", "--executor=local", "--set=ntasks_per_node=2", f"--run={tmp_path}/run", "--"]
    for steps in (2, 5):
        code, out, err = mb_launch(*launch, sys.executable, str(WORK), str(tmp_path), str(steps), "0.01")
        assert code == 0, err
        assert "rank 1 of 2 on this machine at step " in out
        assert "succeeded: local_persistent://nemo_run/run-" in out
    assert (tmp_path / "state_1").read_text().endswith(" 5")
    first, second = read_nemo_run_jobs(tmp_path / "run")
    states = [line.rpartition("/")[0] for line in mb_launch("status", "run")[1].splitlines()]
    assert states == [
        f"{job} SUCCEEDED executor=local handle=local_persistent://nemo_run" for job in (first, second)
    ]
    assert "rank 0 ends at step 5" in mb_launch("logs", "run")[1]
    assert "Leave out --rank" in mb_launch("logs", "run", "--rank=0")[2]
    assert mb_launch("cancel", "run")[1] == "no job of this run waits or runs\n"
    code, out, _ = mb_launch(*launch, sys.executable, "-c", "raise SystemExit(3)")
    assert code == 1
    assert "failed: local_persistent://nemo_run/run-" in out


@installed
def test_an_experiment_of_another_machine_and_a_missing_sbatch_are_named(
    nemo_run_home, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    record_nemo_run_job(tmp_path / "run", NemoRunJob(experiment="gone_1", job="run", executor="local"))
    code, _, err = mb_launch("status", "run")
    assert code == 1
    assert "gone_1/run: is not in" in err
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = mb_launch("nemo-run", "--executor=slurm", "--set=account=a", "--", "x")
    assert code == 1
    assert "NeMo-Run could not run the job (" in err
