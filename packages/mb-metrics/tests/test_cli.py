"""Program `mb-metrics`: default paths of pages, statistics as JSON, one message and an exit code for bad input."""

import atexit
import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

pytest.importorskip("rich", reason="needs mb-metrics[cli]")
pytest.importorskip("typer", reason="needs mb-metrics[cli]")
pytest.importorskip("yaml", reason="needs mb-metrics[cli]")

import typer
from typer.testing import CliRunner

from mb_metrics import BaselineConfiguration, ReportTooLargeError, RunNotFoundError
from mb_metrics.cli.app import ReportOptions, app
from mb_metrics.cli.report import default_target, read_configuration, read_run_with_settings
from mb_metrics.cli.watch import can_encode_braille
from mb_schema.commands import exit_codes

STEP_TIME = "Step Time : 0.50s GPU utilization: 1.0TFLOP/s/GPU\n"


def mb_metrics(*arguments, program=app):
    return CliRunner().invoke(program, [str(argument) for argument in arguments], prog_name="mb-metrics")


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    rows = [{"step": step, "time": 1e9 + step, "lm loss": 4.0 / step} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run_config.yaml").write_text("train:\n  train_iters: 4\nmodel: {num_layers: 4}\n")
    return folder


def test_the_page_is_written_to_the_run_folder(run):
    result = mb_metrics("report", run)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{run / 'report.html'}\n", "")
    text = (run / "report.html").read_text()
    assert "3 of 4" in text
    assert "model.num_layers: 4" in text
    assert "Changed from" not in text


def test_a_trainer_passes_a_baseline(run):
    baseline = BaselineConfiguration(name="the recipe x", settings={"train": {"train_iters": 300}})
    ReportOptions(runs=[run]).run({run: baseline})
    assert "Changed from the recipe x" in (run / "report.html").read_text()


def test_the_settings_of_a_run_and_the_differences_from_its_baseline(run):
    settings = {"train": {"train_iters": 300, "seed": 1}, "model": {"num_layers": 2}, "logger": {}}
    baseline = BaselineConfiguration(name="x", settings=settings, ignored={"model.num_layers"})
    found = read_configuration(run, baselines={run: baseline})
    assert found.settings == {"train.train_iters": 4, "model.num_layers": 4}
    assert (found.baseline, found.changes) == ("x", {"train.train_iters": (300, 4)})
    assert read_configuration(run).baseline is None
    (run / "run_config.yaml").unlink()
    assert read_configuration(run) is None


def test_the_metrics_file_of_a_run_folder_has_the_settings_of_the_run(run):
    (run / "events.jsonl").touch()
    found = read_run_with_settings(run / "metrics.jsonl")
    assert found.configuration == read_run_with_settings(run).configuration
    assert found.configuration.settings["train.train_iters"] == 4


def test_a_mapping_of_secrets_is_masked(run):
    (run / "run_config.yaml").write_text("logger: {api_key: {first: abc, second: def}}\n")
    baseline = BaselineConfiguration(name="x", settings={"logger": {"api_key": {"first": "ghi"}}})
    found = read_configuration(run, baselines={run: baseline})
    assert found.settings == {"logger.api_key": {"first": "<masked>", "second": "<masked>"}}
    assert found.changes == {}


@pytest.mark.parametrize("text", [b"a: [", b"- list\n", b"\xff\xfe\x00"])
def test_settings_that_cannot_be_read_are_reported(run, text):
    (run / "run_config.yaml").write_bytes(text)
    assert read_configuration(run) is None
    done = mb_metrics("report", run)
    note = "the settings are not shown: run_config.yaml is not a YAML file of settings"
    assert (done.exit_code, done.stderr) == (0, f"note: {run}: {note}\n")
    assert note[1:] in (run / "report.html").read_text()


def test_settings_changed_at_a_resume_are_reported(run):
    event = {"event": "resume", "time": 1e9, "step": 2, "changes": {"optimizer.lr": [0.1, 0.2]}}
    (run / "events.jsonl").write_text(json.dumps(event) + "\n")
    note = "settings changed at the resume from step 2: optimizer.lr from 0.1 to 0.2"
    assert mb_metrics("report", run, "--json").stderr == f"note: {run}: {note}\n"


def test_damaged_lines_are_counted_and_reported(run):
    with (run / "metrics.jsonl").open("a") as metrics, (run / "events.jsonl").open("w") as events:
        metrics.write("{\n")
        events.write('{"event": "start", "time": 1e9}\n{"event": 3}\nnonsense\n')
    done = mb_metrics("report", run, "--json")
    assert done.stderr.splitlines() == [
        f"note: {run}: 1 damaged line of metrics.jsonl left out",
        f"note: {run}: 2 damaged lines of events.jsonl left out",
    ]
    assert "2 damaged lines of events.jsonl left out." in json.loads(done.stdout)["runs"][0]["warnings"]


def test_default_paths_of_pages(tmp_path):
    names = [
        default_target([tmp_path], []),
        default_target([tmp_path / "metrics.jsonl"], []),
        default_target([], [tmp_path / "train.log"]),
        default_target([tmp_path], [tmp_path / "train.log"]),
    ]
    assert [str(name.relative_to(tmp_path)) if name.is_absolute() else str(name) for name in names] == [
        *("report.html", "metrics.report.html", "train.report.html", "report.html")
    ]


def test_statistics_of_runs_and_logs_as_json(run, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(3 * STEP_TIME)
    result = mb_metrics("report", run, "--from-log", log, "--json")
    found = json.loads(result.stdout)["runs"]
    assert [(one["name"], one["steps"], one["total_steps"]) for one in found] == [
        ("tiny", 3, 4),
        ("train", 3, None),
    ]
    assert not (tmp_path / "report.html").exists()
    page = tmp_path / "new" / "page.html"
    assert mb_metrics("report", run, "--json", "--out", page).exit_code == 0
    assert page.exists()


def test_bad_input_is_one_error(run, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("nothing\n")
    cases = {
        (): (2, "give a run folder"),
        (tmp_path / "missing",): (2, "no run found"),
        ("--from-log", log): (2, "train.log: no line of 1"),
        ("--from-log", log, "--log-format", "torchtitan"): (2, "in the format torchtitan"),
        ("--from-log", tmp_path / "missing.log"): (2, "does not exist"),
        (run / ("x" * 300),): (2, "cannot be used (File name too long)"),
        (run, "--log-format", "mb"): (2, "no log is given. Add --from-log FILE"),
        (run, "--serve", "--json"): (2, "Leave out --from-log, --out and --json"),
        (run, "--port", "8000"): (2, "it is the port of a server. Add --serve"),
        (tmp_path, "--serve"): (2, f"Pass a run folder: {run}."),
        (run / "run_config.yaml",): (
            2,
            "not a metrics file. None of its 3 lines is a JSON object with a step",
        ),
        (tmp_path,): (2, f"Pass a run folder: {run}."),
        (run, "--out", "/proc/nowhere/page.html"): (1, "/proc/nowhere/page.html: cannot be written"),
    }
    results = {arguments: mb_metrics("report", *arguments) for arguments in cases}
    assert {arguments: result.exit_code for arguments, result in results.items()} == {
        arguments: code for arguments, (code, _) in cases.items()
    }
    for arguments, (_, message) in cases.items():
        assert message in " ".join(results[arguments].stderr.replace("│", " ").split())
        assert results[arguments].stdout == ""
    missing = mb_metrics("watch", tmp_path / "missing")
    assert (missing.exit_code, "a log of a trainer is read by `report --from-log`" in missing.stderr) == (
        2,
        True,
    )
    assert mb_metrics("watch", log).exit_code == 2


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RunNotFoundError("x: no run found"), 2, "error: x: no run found\n"),
        (ReportTooLargeError("too large"), 1, "error: too large\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "x"),
            2,
            "error: x: cannot be used (Permission denied). Name another path, or change who may use it.\n",
        ),
    ],
    ids=["bad input", "failure", "interrupt", "inaccessible path"],
)
def test_exit_codes_of_errors(capsys, error, code, message):
    with pytest.raises(typer.Exit) as end, exit_codes():
        raise error
    assert (end.value.exit_code, capsys.readouterr().err) == (code, message)


def test_other_errors_keep_their_traceback():
    with pytest.raises(OSError, match="No space left"), exit_codes():
        raise OSError(errno.ENOSPC, "No space left", "x")


@pytest.mark.parametrize("command", ["report", "watch"])
def test_help_has_an_example(command):
    assert f"Example: mb-metrics {command} runs/" in mb_metrics(command, "--help").stdout


def test_without_a_command_help_is_printed():
    result = mb_metrics()
    assert result.exit_code == 2
    assert "report" in result.output


def test_watch_without_a_terminal_prints_once(run):
    result = mb_metrics("watch", run)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:2] == [
        "tiny: not closed (killed or still running)",
        f"step 3 of 4  {'█' * 59}{'░' * 20}  75.0 %",
    ]


def restore_interrupts():
    """Restore the handler of interrupts, which a test run in the background of a shell ignores."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_on_a_terminal(folder):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mb_metrics", "watch", str(folder), "--seconds", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=restore_interrupts,
    )
    os.close(theirs)
    atexit.register(process.kill)
    return process, ours


def read_until(terminal, text):
    seen = b""
    end = time.monotonic() + 60
    while text not in seen and time.monotonic() < end:
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
    return seen


def test_watch_on_a_terminal_ends_with_the_run(run):
    process, terminal = start_on_a_terminal(run)
    state = b"not closed (killed or still running)"
    assert state in read_until(terminal, state)
    (run / "events.jsonl").write_text('{"event": "stop", "time": 5, "step": 3, "reason": "signal"}\n')
    assert b"stopped (signal)" in read_until(terminal, b"stopped (signal)")
    assert process.wait(timeout=120) == 0


def test_a_served_report_ends_with_an_interrupt(run):
    command = [sys.executable, "-m", "mb_metrics", "report", "--serve", str(run)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=restore_interrupts
    ) as process:
        with urlopen(process.stdout.readline().strip(), timeout=60) as answer:
            assert b"<h1>tiny</h1>" in answer.read()
        process.send_signal(signal.SIGINT)
        assert (process.wait(timeout=60), process.stderr.read().count("Traceback")) == (0, 0)


def test_an_interrupt_ends_the_display_quietly(run):
    process, terminal = start_on_a_terminal(run)
    read_until(terminal, b"not closed (killed or still running)")
    process.send_signal(signal.SIGINT)
    rest = read_until(terminal, b"Traceback")
    assert (process.wait(timeout=120), b"Traceback" in rest, b"interrupted" in rest) == (0, False, False)


def test_a_terminal_without_braille_gets_ascii():
    assert [can_encode_braille(name) for name in ("utf-8", "latin-1", None, "no-such")] == [
        True,
        False,
        False,
        False,
    ]


def test_the_program_is_installed_and_runs_as_a_module(run):
    installed = [str(Path(sys.executable).parent / "mb-metrics")]
    for program in (installed, [sys.executable, "-m", "mb_metrics"]):
        command = [*program, "report", str(run), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["runs"][0]["steps"] == 3


def test_losses_and_learning_rate_can_be_named(tmp_path):
    rows = [{"step": step, "time": 1e9 + step, "a/b": 2.0, "c/d": 0.5} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = mb_metrics("watch", tmp_path, "--loss", "a/b", "--learning-rate", "c/d").stdout
    assert "loss 2              mean of 2 2" in text
    assert "lr 0.5" in text
    found = mb_metrics("report", tmp_path, "--json", "--loss", "c/d", "--loss", "a/b")
    assert list(json.loads(found.stdout)["runs"][0]["losses"]) == ["c/d", "a/b"]
    wrong = mb_metrics("report", tmp_path, "--loss", "x")
    assert (wrong.exit_code, "the loss 'x' was not recorded" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ([{"step": 1, "time": 1e9, "end": "finished"}], "finished"),
        ([], "not closed (killed or still running)"),
    ],
)
def test_a_report_states_whether_the_run_was_closed(tmp_path, end, state):
    rows = [{"step": 1, "time": 1e9, "loss": 2.0}, *end]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert mb_metrics("report", tmp_path).exit_code == 0
    assert f"<dt>State</dt><dd>{state}</dd>" in (tmp_path / "report.html").read_text()
    assert mb_metrics("watch", tmp_path).stdout.startswith(f"{tmp_path.name}: {state}\n")
