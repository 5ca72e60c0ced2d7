"""The table of checks for the first run on a machine with a GPU: its dry run, and rows that go wrong."""

import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

GPU = Path(__file__).parents[1] / "gpu"
SCRIPT = GPU / "first_run.py"
ROWS = {
    "smoke": "passed",
    "transformer_engine": "skipped",
    "train.cpu": "passed",
    "train.gpu": "skipped",
    "train.gpu_same_weights": "skipped",
    "resume.local": "skipped",
    "resume.local_distributed_optimizer": "skipped",
    "resume.without_transformer_engine": "skipped",
    "resume.transformer_engine": "skipped",
    "resume.transformer_engine_sharded": "skipped",
    "graphs.layers_saved_and_resumed": "skipped",
    "graphs.whole_step_saved_and_resumed": "skipped",
}
"""Rows other than tests of this folder, with their outcome without a GPU."""


@pytest.fixture(scope="module")
def first_run():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("first_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["first_run"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["first_run"]


@pytest.fixture
def machine(first_run, tmp_path):
    """A machine without a GPU, for rows whose commands need no packages."""
    return first_run.Machine(out=tmp_path, environment={}, gpu=False)


def row_of(first_run, script, *, name="row", **fields):
    fields = {"limit_seconds": 30, **fields}
    return first_run.Row(id=name, command=lambda machine: [sys.executable, "-c", script], **fields)


def gone(pid, *, seconds=30.0):
    """Wait for a killed process to end, and return whether it ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_a_dry_run_without_a_gpu_skips_with_reasons_what_it_cannot_run(tmp_path):
    command = [sys.executable, str(SCRIPT), "--dry-run", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    tests = [
        name
        for file in sorted(GPU.glob("test_*.py"))
        for name in re.findall(r"^def (test_\w+)", file.read_text(), flags=re.MULTILINE)
    ]
    found = {line["row"]: line["status"] for line in lines}
    assert len(found) == len(lines), done.stdout
    expected = {**ROWS, **{f"pytest.{name}": "skipped" for name in [*tests, "packages/mb-metrics/tests"]}}
    assert found == expected, done.stdout
    assert (list(found)[: len(ROWS)], done.returncode) == (list(ROWS), 0)
    reasons = {line["row"]: line["reason"] for line in lines if line["status"] == "skipped"}
    assert {reason.partition(";")[0] for reason in reasons.values()} == {"there is no CUDA device"}
    assert reasons["graphs.layers_saved_and_resumed"].endswith("mb check accepts the settings")
    losses = next(line["values"]["losses"] for line in lines if line["row"] == "train.cpu")
    assert len(losses) == 20
    assert (tmp_path / "results.jsonl").read_text() == done.stdout
    assert done.stderr.rstrip().splitlines()[-2].startswith("2 passed, 0 failed, ")


def test_the_next_row_follows_whatever_happens(first_run, machine):
    def broken(machine):
        raise LookupError("no such file")

    def rejects(machine):
        raise first_run.RowFailed("the loss did not fall")

    table = [
        row_of(first_run, "print('the last word'); raise SystemExit(3)", name="exit"),
        row_of(first_run, "import time; time.sleep(600)", name="hang", limit_seconds=0.5),
        row_of(first_run, "", name="check", check=rejects),
        first_run.Row(id="command", limit_seconds=1, command=broken),
        row_of(first_run, "", name="needs", needs=("no_such_module",)),
        row_of(first_run, "", name="good", check=lambda machine: {"loss": 1.5}),
    ]
    lines = list(first_run.table(machine, table, ends=float("inf")))
    assert [(line["row"], line["status"], line.get("reason")) for line in lines] == [
        ("exit", "failed", "exit code 3"),
        ("hang", "failed", "still running after 0.5 s, and killed"),
        ("check", "failed", "the loss did not fall"),
        ("command", "failed", "LookupError: no such file"),
        ("needs", "skipped", "not installed: no_such_module"),
        ("good", "passed", None),
    ]
    assert (lines[0]["output"], lines[-1]["values"]) == (["the last word"], {"loss": 1.5})


def test_after_the_deadline_no_row_is_started(first_run, machine):
    table = [row_of(first_run, "raise SystemExit(1)")]
    (line,) = first_run.table(machine, table, ends=time.monotonic() - 1)
    assert (line["status"], line["reason"]) == ("skipped", "the deadline has passed")


def test_what_a_row_leaves_running_ends_with_it(first_run, machine):
    script = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    (line,) = first_run.table(machine, [row_of(first_run, script)], ends=float("inf"))
    (pid,) = first_run.tail(machine.out / "logs" / "row.txt")
    assert line["status"] == "passed"
    assert gone(int(pid))


@pytest.mark.parametrize(
    ("losses", "bounds", "reason"),
    [
        ([8.0, 4.0], {"every": 0.02}, None),
        ([8.0, 4.2], {"every": 0.02}, "step 20: the losses are 5.0% apart, above 2%"),
        ([8.3, 4.2], {"last": 0.1}, None),
        ([8.0, 8.0], {"last": 0.1}, "the loss did not fall in 20 steps"),
        ([8.0, float("nan")], {"last": 0.1}, "the loss did not fall in 20 steps"),
    ],
)
def test_losses_are_compared_with_those_of_the_cpu(first_run, machine, losses, bounds, reason):
    for row, values in {"train.cpu": [8.0, 4.0], "train.gpu": losses}.items():
        run = machine.trained(row)
        run.mkdir(parents=True)
        rows = [{"step": step, "lm loss": value} for step, value in zip((1, 20), values, strict=True)]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if reason is None:
        found = first_run.compared(machine, "train.gpu", **bounds)
        assert (found["losses"], found["cpu"]) == (losses, [8.0, 4.0])
    else:
        with pytest.raises(first_run.RowFailed, match=re.escape(reason)):
            first_run.compared(machine, "train.gpu", **bounds)


REPORT = """<testsuites><testsuite>
<testcase name="one"/><testcase name="two">{}</testcase>
</testsuite></testsuites>"""


def test_the_report_of_pytest_is_read(first_run, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format('<skipped message="capability 9, and 10 is needed"/>'))
    assert first_run.outcomes_of(report) == {
        "passed": 1,
        "failed": 0,
        "skipped": 1,
        "notes": {"two": "capability 9, and 10 is needed"},
    }
    report.write_text(REPORT.format('<failure message="assert 1 == 2&#10;where">text</failure>'))
    with pytest.raises(first_run.RowFailed, match=r"'failed': 1.*'two': 'assert 1 == 2'"):
        first_run.outcomes_of(report)
    report.write_text("<testsuites/>")
    with pytest.raises(first_run.RowFailed, match="'passed': 0"):
        first_run.outcomes_of(report)


def test_a_machine_without_a_gpu_fails_the_first_row_unless_it_is_a_dry_run(first_run, tmp_path):
    values = {"devices": [], "versions": {"torch": "2.11"}}
    there, dry = (first_run.Machine(out=tmp_path, environment={}, gpu=gpu) for gpu in (True, False))
    assert first_run.need_gpu(dry, values) == values
    with pytest.raises(first_run.RowFailed, match=r"there is no CUDA device: torch 2\.11 sees none"):
        first_run.need_gpu(there, values)


INSTALL = """
mkdir -p "$ROOT/site/brought"; echo "WHERE = 'site'" > "$ROOT/site/brought/__init__.py"
echo "export PYTHONPATH=$ROOT/site FROM_INSTALL='two words'" > "$ROOT/te_env.sh"; echo unpacked
"""


def test_packages_are_installed_or_added_to_the_path(first_run, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "path", [*sys.path])
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    plain = first_run.prepare(tmp_path / "plain", bundle, dry_run=True)
    assert str(bundle) in plain.environment["PYTHONPATH"].split(":")
    assert plain.environment["CUDA_VISIBLE_DEVICES"] == ""
    (bundle / "install.sh").write_text(INSTALL)
    unpacked = first_run.prepare(tmp_path / "unpacked", bundle, dry_run=False)
    path = unpacked.environment["PYTHONPATH"].split(":")
    assert str(tmp_path / "unpacked/packages/site") in path
    assert unpacked.environment["FROM_INSTALL"] == "two words"
    assert capfd.readouterr() == ("", "unpacked\n")
    versions = [*Path(path[-1]).glob("mb_checkpoint-*.dist-info/METADATA")]
    assert len(versions) == 1
    with pytest.raises(first_run.RowFailed, match=r"--packages: .*/none is no folder"):
        first_run.prepare(tmp_path, tmp_path / "none", dry_run=True)
    (bundle / "install.sh").write_text("exit 1\n")
    with pytest.raises(first_run.RowFailed, match=r"install\.sh: no environment in"):
        first_run.prepare(tmp_path / "failed", bundle, dry_run=False)


def test_a_row_without_packages_cannot_import_them(first_run, machine):
    script = (
        "from importlib.util import find_spec as find; print(find('apex'), find('json').name, flush=True)"
    )
    script += "; import apex"
    row = row_of(first_run, script, without=("apex",))
    line = first_run.run_row(
        row, first_run.Machine(out=machine.out, environment={"PYTHONPATH": ""}, gpu=False)
    )
    assert line["output"][0] == "None json"
    assert line["output"][-1] == "ModuleNotFoundError: import of apex halted; None in sys.modules"


def test_a_pattern_without_a_row_is_one_error():
    command = [sys.executable, str(SCRIPT), "--rows", "no.such"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "--rows: no row matches no.such. --list prints the rows.\n")
