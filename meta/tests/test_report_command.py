"""`mb report` and `mb watch`: the page lands where it belongs, figures are JSON, and bad input is one error."""

import atexit
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from mb_trainer.cli import app
from mb_trainer.cli_runs import LogFormats
from mb_trainer.commands.report import configuration, default_target
from mb_trainer.commands.watch import can_show_braille
from mb_trainer.recipes import RECIPES

STEP_TIME = "Step Time : 0.50s GPU utilization: 1.0TFLOP/s/GPU\n"


def mb(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    rows = [{"step": step, "time": 1e9 + step, "lm loss": 4.0 / step} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = RECIPES["gpt_tiny"].build()
    config.train.train_iters = 4
    config.to_yaml(folder / "run_config.yaml")
    (folder / "log.txt").write_text("gpt_tiny: fresh run in x\ngpt_tiny: 4.9 M parameters, host layers\n")
    return folder


def test_the_page_goes_into_the_run_folder(run):
    result = mb("report", run)
    assert (result.exit_code, result.stdout) == (0, f"{run / 'report.html'}\n")
    text = (run / "report.html").read_text()
    assert "3 of 4" in text
    assert "Changed from the recipe gpt_tiny" in text


def test_what_a_run_changed_in_its_recipe(run):
    found = configuration(run)
    assert found.baseline == "the recipe gpt_tiny"
    assert found.changes == {"train.train_iters": (300, 4)}
    assert found.settings["model.num_layers"] == 4


@pytest.mark.parametrize("text", [b"a: [", b"- list\n", b"\xff\xfe\x00"])
def test_a_configuration_that_cannot_be_read_is_none(run, text):
    (run / "run_config.yaml").write_bytes(text)
    assert configuration(run) is None
    done = mb("report", run)
    note = "the settings are not shown: run_config.yaml is no YAML file of settings"
    assert (done.exit_code, done.stderr) == (0, f"note: {run}: {note}\n")
    assert note[1:] in (run / "report.html").read_text()


def test_damaged_lines_are_counted_and_said(run):
    with (run / "metrics.jsonl").open("a") as metrics, (run / "events.jsonl").open("w") as events:
        metrics.write("{\n")
        events.write('{"event": "start", "time": 1e9}\n{"event": 3}\nnonsense\n')
    done = mb("report", run, "--json")
    assert done.stderr.splitlines() == [
        f"note: {run}: 1 damaged line of metrics.jsonl left out",
        f"note: {run}: 2 damaged lines of events.jsonl left out",
    ]
    assert "2 damaged lines of events.jsonl left out." in json.loads(done.stdout)["runs"][0]["warnings"]


def test_a_run_without_log_or_configuration(run):
    (run / "log.txt").unlink()
    assert configuration(run).baseline is None
    (run / "run_config.yaml").unlink()
    assert configuration(run) is None


def test_where_pages_go(tmp_path):
    names = [
        default_target([tmp_path], []),
        default_target([tmp_path / "metrics.jsonl"], []),
        default_target([], [tmp_path / "train.log"]),
        default_target([tmp_path], [tmp_path / "train.log"]),
    ]
    assert [str(name.relative_to(tmp_path)) if name.is_absolute() else str(name) for name in names] == [
        *("report.html", "metrics.report.html", "train.report.html", "report.html")
    ]


def test_figures_of_runs_and_logs_as_json(run, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(3 * STEP_TIME)
    result = mb("report", run, "--from-log", log, "--json")
    found = json.loads(result.stdout)["runs"]
    assert [(one["name"], one["steps"], one["total_steps"]) for one in found] == [
        ("tiny", 3, 4),
        ("train", 3, None),
    ]
    assert not (tmp_path / "report.html").exists()
    page = tmp_path / "new" / "page.html"
    assert mb("report", run, "--json", "--out", page).exit_code == 0
    assert page.exists()


def test_the_log_formats_are_those_of_the_parser():
    from mb_metrics import LOG_FORMATS

    assert tuple(one.value for one in LogFormats) == LOG_FORMATS


def test_bad_input_is_one_error(run, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("nothing\n")
    cases = {
        (): (2, "give a run folder"),
        (tmp_path / "missing",): (2, "no run found"),
        ("--from-log", log): (2, "train.log: no line of 1"),
        ("--from-log", log, "--log-format", "torchtitan"): (2, "in the format torchtitan"),
        ("--from-log", tmp_path / "missing.log"): (2, "does not exist"),
        (run, "--out", "/proc/nowhere/page.html"): (1, "/proc/nowhere/page.html: cannot be written"),
    }
    results = {words: mb("report", *words) for words in cases}
    assert {words: result.exit_code for words, result in results.items()} == {
        words: code for words, (code, _) in cases.items()
    }
    for words, (_, message) in cases.items():
        assert message in " ".join(results[words].stderr.replace("│", " ").split())
    assert mb("watch", tmp_path / "missing").exit_code == 2


def test_watch_without_a_terminal_prints_once(run):
    result = mb("watch", run)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:2] == [
        "tiny: no stop recorded",
        "step 3 of 4 [##################......] 75.0 %",
    ]


def hear_interrupts():
    """Undo what a test run in the background of a shell inherits: interrupts that are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_on_a_terminal(folder):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mb_trainer", "watch", str(folder), "--seconds", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=hear_interrupts,
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
        except OSError:  # the other side is closed
            break
    return seen


def test_watch_on_a_terminal_ends_with_the_run(run):
    process, terminal = start_on_a_terminal(run)
    assert b"no stop recorded" in read_until(terminal, b"no stop recorded")
    (run / "events.jsonl").write_text('{"event": "stop", "time": 5, "step": 3, "reason": "signal"}\n')
    assert b"stopped (signal)" in read_until(terminal, b"stopped (signal)")
    assert process.wait(timeout=120) == 0


def test_an_interrupt_leaves_the_watch_quietly(run):
    process, terminal = start_on_a_terminal(run)
    read_until(terminal, b"no stop recorded")
    process.send_signal(signal.SIGINT)
    rest = read_until(terminal, b"Traceback")
    assert (process.wait(timeout=120), b"Traceback" in rest, b"interrupted" in rest) == (0, False, False)


def test_a_terminal_without_braille_gets_ascii():
    assert [can_show_braille(name) for name in ("utf-8", "latin-1", None, "no-such")] == [
        True,
        False,
        False,
        False,
    ]
