"""The table of checks for the first run on a machine with a GPU: its dry run, and rows that go wrong."""

import json
import re
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

GPU = Path(__file__).parents[1] / "gpu"
SCRIPT = GPU / "first_run.py"
sys.path.insert(0, str(GPU))

from first_run.family_rows import learned  # noqa: E402
from first_run.machine import Machine, MachineError, prepare  # noqa: E402
from first_run.pytest_rows import outcomes_of  # noqa: E402
from first_run.resume_rows import SAVES, STALL, stalls  # noqa: E402
from first_run.row import Row, RowFailed  # noqa: E402
from first_run.running import run_row, table, tail  # noqa: E402
from first_run.speed_rows import LADDERS, bridge_row, further_speed_rows, measured, speed_rows  # noqa: E402
from first_run.table import all_rows, summary  # noqa: E402
from first_run.training_rows import compared, need_gpu  # noqa: E402

from mb_metrics.bench.result import BenchResult  # noqa: E402

ON_A_CPU = {
    "doctor",
    "smoke",
    "train.cpu",
    "ladder.350m.perf",
    "peer.350m.megatron_lm",
    "peer.350m.nanogpt",
    "report",
}
"""Rows that run without a GPU."""


@pytest.fixture
def machine(tmp_path):
    """A machine without a GPU, for rows whose commands need no packages."""
    return Machine(out=tmp_path, environment={}, gpu=False)


def row_of(script, *, name="row", **fields):
    fields = {"limit_seconds": 30, **fields}
    return Row(id=name, command=lambda machine: [sys.executable, "-c", script], **fields)


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["row"] for line in lines] == [*(row.id for row in all_rows()), "report"], done.stdout
    failed = [line for line in lines if line["status"] == "failed"]
    passed = {line["row"] for line in lines if line["status"] == "passed"}
    assert (failed, passed, done.returncode) == ([], ON_A_CPU, 0)
    reasons = {line["row"]: line["reason"] for line in lines if line["status"] == "skipped"}
    assert {reason.partition(";")[0] for reason in reasons.values()} == {"there is no CUDA device"}
    checked = {row.id for row in all_rows() if row.settings is not None} - ON_A_CPU
    assert {row for row, reason in reasons.items() if "mb check accepts" in reason} == checked
    values = {line["row"]: line.get("values") for line in lines}
    assert len(values["train.cpu"]["losses"]) == 20
    assert values["report"]["runs"] == 2
    for row in ("ladder.350m.perf", "peer.350m.megatron_lm", "peer.350m.nanogpt"):
        assert (values[row]["steps"], values[row]["device"], values[row]["mfu"]) == (3, "cpu", None)
        assert values[row]["tokens_per_second"] > 0
        assert values[row]["losses"][0] == pytest.approx(6.24, abs=0.1)  # log of 512 tokens
    assert (tmp_path / "results.jsonl").read_text() == done.stdout
    end = done.stderr.rstrip().splitlines()
    assert end[-3].startswith("7 passed, 0 failed, ")
    assert "peer.350m.megatron_lm" in end[-5]


def test_the_ladders_and_the_peers_are_in_the_table_with_what_decides_first(tmp_path):
    (tmp_path / "torchtitan.py").write_text("from measured import measure_steps")
    (tmp_path / "bench_bridge.py").write_text("print('RESULT {}')")
    (tmp_path / "common.py").write_text("")
    rows = [*speed_rows(tmp_path), *further_speed_rows(tmp_path)]
    found = [row.id for row in rows]
    ladders = {f"ladder.{shape.name}.{step}" for shape, ladder in LADDERS.items() for step in ladder}
    peers = {
        *(
            f"peer.{shape}.{name}"
            for shape in ("350m", "1300m")
            for name in ("megatron_lm", "nanogpt", "torchtitan")
        ),
        *(f"peer.llama_1400m.{name}" for name in ("nanogpt", "torchtitan", "megatron_bridge")),
    }
    others = {*(f"kernels.{shape}.perf" for shape in ("350m", "llama_1400m", "moe_1b")), "in_turn.350m"}
    assert ({*found}, len(found)) == (ladders | peers | others, len(found))
    assert found[0] == "ladder.llama_1400m.perf"
    assert found.index("ladder.350m.perf") < found.index("ladder.350m.eager")
    assert found.index("peer.350m.torchtitan") < found.index("ladder.llama_1400m.fp8_current")
    assert all(row.alone for row in rows)


def test_what_megatron_bridge_prints_is_read(machine, tmp_path):
    result = {
        "step_ms_median": 607.2,
        "tokens_per_s": 53_970,
        "peak_alloc_gib": 36.4,
        "loss": {},
        "attn_used": "fused",
        "params": 1,
        "versions": {},
    }
    (tmp_path / "bench_bridge.py").write_text(f"print('RESULT {json.dumps(result)}')")
    row = bridge_row(tmp_path)
    line = run_row(replace(row, needs=()), machine)
    assert line["status"] == "passed"
    assert line["values"]["step_seconds"] == {"median": pytest.approx(0.6072)}
    (tmp_path / "bench_bridge.py").write_text("")
    assert run_row(replace(row, needs=()), machine)["reason"] == "printed no result"


def test_the_next_row_follows_whatever_happens(machine):
    def broken(machine):
        raise LookupError("no such file")

    def rejects(machine):
        raise RowFailed("the loss did not fall")

    rows = [
        row_of("print('the last word'); raise SystemExit(3)", name="exit"),
        row_of("import time; time.sleep(600)", name="hang", limit_seconds=0.5),
        row_of("", name="check", check=rejects),
        Row(id="command", limit_seconds=1, command=broken),
        row_of("", name="needs", needs=("no_such_module",)),
        row_of("", name="good", check=lambda machine: {"loss": 1.5}),
    ]
    lines = list(table(machine, rows, ends=float("inf")))
    assert [(line["row"], line["status"], line.get("reason")) for line in lines] == [
        ("exit", "failed", "exit code 3"),
        ("hang", "failed", "still running after 0.5 s, and killed"),
        ("check", "failed", "the loss did not fall"),
        ("command", "failed", "LookupError: no such file"),
        ("needs", "skipped", "not installed: no_such_module"),
        ("good", "passed", None),
    ]
    assert (lines[0]["output"], lines[-1]["values"]) == (["the last word"], {"loss": 1.5})


def test_after_the_deadline_no_row_is_started(machine):
    rows = [row_of("raise SystemExit(1)")]
    (line,) = table(machine, rows, ends=time.monotonic() - 1)
    assert (line["status"], line["reason"]) == ("skipped", "the deadline has passed")


def test_the_deadline_stops_a_row_that_runs(machine):
    (line,) = table(machine, [row_of("import time; time.sleep(600)")], ends=time.monotonic() + 0.5)
    assert (line["status"], line["reason"].partition(";")[0]) == ("skipped", "the deadline has passed")


def test_rows_share_the_machine_but_for_those_that_measure_speed(machine, tmp_path):
    """Two rows wait for each other's file; the one that runs alone finds both, and one waits for the result of it."""
    meet = (
        "import pathlib, sys, time; folder = pathlib.Path({!r}); (folder / '{}').touch()\n"
        "while not (folder / '{}').exists(): time.sleep(0.01)"
    )
    rows = [
        row_of(meet.format(str(tmp_path), "one", "two"), name="one"),
        row_of(meet.format(str(tmp_path), "two", "one"), name="two"),
        row_of("", name="alone", alone=True),
        row_of("", name="late", after=("slow",)),
        row_of("import time; time.sleep(0.3)", name="slow"),
    ]
    lines = list(table(machine, rows, ends=float("inf"), jobs=2))
    names = [line["row"] for line in lines]
    assert {line["status"] for line in lines} == {"passed"}
    assert (sorted(names[:2]), names[2:]) == (["one", "two"], ["alone", "slow", "late"])


def test_what_a_row_leaves_running_ends_with_it(machine):
    script = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    (line,) = table(machine, [row_of(script)], ends=float("inf"))
    (pid,) = tail(machine.out / "logs" / "row.txt")
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
def test_losses_are_compared_with_those_of_the_cpu(machine, losses, bounds, reason):
    for row, values in {"train.cpu": [8.0, 4.0], "train.gpu": losses}.items():
        run = machine.trained(row)
        run.mkdir(parents=True)
        rows = [{"step": step, "lm loss": value} for step, value in zip((1, 20), values, strict=True)]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if reason is None:
        found = compared(machine, "train.gpu", **bounds)
        assert (found["losses"], found["cpu"]) == (losses, [8.0, 4.0])
    else:
        with pytest.raises(RowFailed, match=re.escape(reason)):
            compared(machine, "train.gpu", **bounds)


REPORT = """<testsuites><testsuite>
<testcase name="one"/><testcase name="two">{}</testcase>
</testsuite></testsuites>"""


def test_the_report_of_pytest_is_read(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format('<skipped message="capability 9, and 10 is needed"/>'))
    assert outcomes_of(report) == {
        "passed": 1,
        "failed": 0,
        "skipped": 1,
        "notes": {"two": "capability 9, and 10 is needed"},
    }
    report.write_text(REPORT.format('<failure message="assert 1 == 2&#10;where">text</failure>'))
    with pytest.raises(RowFailed, match=r"'failed': 1.*'two': 'assert 1 == 2'"):
        outcomes_of(report)
    report.write_text("<testsuites/>")
    with pytest.raises(RowFailed, match="'passed': 0"):
        outcomes_of(report)


def test_a_machine_without_a_gpu_fails_the_first_row_unless_it_is_a_dry_run(tmp_path):
    values = {"devices": [], "versions": {"torch": "2.11"}}
    there, dry = (Machine(out=tmp_path, environment={}, gpu=gpu) for gpu in (True, False))
    assert need_gpu(dry, values) == values
    with pytest.raises(RowFailed, match=r"there is no CUDA device: torch 2\.11 sees none"):
        need_gpu(there, values)


INSTALL = """
mkdir -p "$ROOT/site/brought"; echo "WHERE = 'site'" > "$ROOT/site/brought/__init__.py"
echo "export PYTHONPATH=$ROOT/site FROM_INSTALL='two words'" > "$ROOT/te_env.sh"; echo unpacked
"""


def test_packages_are_installed_or_added_to_the_path(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    plain = prepare(tmp_path / "plain", [bundle], dry_run=True)
    assert str(bundle) in plain.environment["PYTHONPATH"].split(":")
    assert plain.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert "PYTHONDONTWRITEBYTECODE" not in plain.environment
    (bundle / "install.sh").write_text(INSTALL)
    with zipfile.ZipFile(tmp_path / "brought-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("from_a_wheel.py", "")
    unpacked = prepare(tmp_path / "unpacked", [bundle, tmp_path], dry_run=False)
    path = unpacked.environment["PYTHONPATH"].split(":")
    assert str(tmp_path / "unpacked/packages/site") in path
    assert str(tmp_path / "unpacked/wheels") in path
    assert (tmp_path / "unpacked/wheels/from_a_wheel.py").exists()
    assert unpacked.environment["FROM_INSTALL"] == "two words"
    assert capfd.readouterr() == ("", "unpacked\n")
    versions = [*Path(path[-1]).glob("mb_checkpoint-*.dist-info/METADATA")]
    assert len(versions) == 1
    with pytest.raises(MachineError, match=r"--packages: .*/none is not a folder"):
        prepare(tmp_path, [tmp_path / "none"], dry_run=True)
    (bundle / "install.sh").write_text("exit 1\n")
    with pytest.raises(MachineError, match=r"install\.sh: no environment in"):
        prepare(tmp_path / "failed", [bundle], dry_run=False)


def test_a_row_without_packages_cannot_import_them(machine):
    script = (
        "from importlib.util import find_spec as find; print(find('apex'), find('json').name, flush=True)"
    )
    script += "; import apex"
    row = row_of(script, without=("apex",))
    line = run_row(row, Machine(out=machine.out, environment={"PYTHONPATH": ""}, gpu=False))
    assert line["output"][0] == "None json"
    assert line["output"][-1] == "ModuleNotFoundError: import of apex halted; None in sys.modules"


def measurement(machine, row, losses, *, tokens=1000):
    """Leave the result of a measurement of 1 second."""
    found = BenchResult(
        device="cpu",
        world_size=1,
        warmup_steps=1,
        step_times=(0.5, 0.5),
        tokens=tokens,
        flops=None,
        peak_tflops=None,
        peak_memory_gib=1.0,
        synchronizations_per_step=0.0,
        scalar_reads_per_step=0.0,
        kernel_launches_per_step=300.0,
        losses=losses,
    )
    file = machine.measured(row) / "run-1" / "bench.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(found.to_dict()))


def test_a_row_of_the_ladder_is_compared_with_the_first_one(tmp_path):
    machine = Machine(out=tmp_path, environment={}, gpu=True)
    measurement(machine, "perf", (8.0, 7.0, 6.0, 4.0))
    measurement(machine, "fast", (8.0, 7.0, 6.0, 4.2), tokens=3000)
    found = measured(machine, "fast", base="perf")
    assert (found["times_perf"], found["largest_difference"]) == (3.0, 0.05)
    assert "times_perf" not in measured(machine, "perf", base="perf")
    lines = [{"row": "fast", "status": "passed", "seconds": 9.0, "values": found}]
    assert summary(lines).splitlines()[2:4] == [
        "      ms/step  tokens/s  MFU  GiB  waits  launches  x perf  loss apart",
        "fast    500.0     3,000    -  1.0      0       300   3.000       5.00%",
    ]


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ((8.0, 7.0, 6.0, 3.0), r"the losses are 25\.0% from those of perf, above 10%"),
        ((8.0, 7.2, 6.0, 4.0), r"the losses are 2\.9% from those of perf, above 1%"),
        ((8.0, float("nan")), "a loss is not finite"),
        ((8.0, 8.0), "the loss did not fall"),
    ],
)
def test_a_measurement_with_wrong_losses_fails(losses, reason, tmp_path):
    machine = Machine(out=tmp_path, environment={}, gpu=True)
    measurement(machine, "perf", (8.0, 7.0, 6.0, 4.0))
    measurement(machine, "fast", losses)
    with pytest.raises(RowFailed, match=reason):
        measured(machine, "fast", base="perf")


def write_steps(run, times):
    run.mkdir(parents=True)
    rows = [{"step": step, "time": time_, "lm loss": 9.0 - step / 10} for step, time_ in times.items()]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (run / "log.txt").write_text("local layers")


def test_the_stall_of_a_save_is_what_the_next_step_takes_longer(machine):
    times = {step: step + 0.5 * sum(step > save for save in SAVES) for step in range(1, 36)}
    write_steps(machine.trained(STALL), times)
    found = stalls(machine)
    assert found == {"median_step_seconds": 1.0, "stall_seconds": dict.fromkeys(SAVES, 0.5)}


def test_a_stall_needs_a_step_after_each_save(machine):
    write_steps(machine.trained(STALL), {step: step for step in range(1, 12)})
    with pytest.raises(RowFailed, match="there are no steps after the saves"):
        stalls(machine)


def test_on_a_gpu_the_layers_are_those_of_transformer_engine(tmp_path):
    machine = Machine(out=tmp_path, environment={}, gpu=True)
    write_steps(machine.trained("row"), {step: step for step in range(1, 11)})
    with pytest.raises(RowFailed, match="the layers are not Transformer Engine's"):
        learned(machine, "row")


def test_a_folder_of_peers_that_is_not_there_is_one_error():
    command = [sys.executable, str(SCRIPT), "--peers", "none", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "--peers: none is not a folder. Name one with programs.\n")


def test_a_pattern_without_a_row_is_one_error():
    command = [sys.executable, str(SCRIPT), "--rows", "no.such"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "--rows: no row matches no.such. --list prints the rows.\n")
