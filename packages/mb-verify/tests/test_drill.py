"""Drills of a small trainer in real processes: a sound one recovers from every fault, and flaws are found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mb_verify import (
    FAULTS,
    DrillPlan,
    drill_as_data,
    drill_as_text,
    run_drill,
)
from mb_verify.errors import DrillError, VerificationError

TRAINER = str(Path(__file__).parent / "drilled_trainer.py")
pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc")


def drilled(*kinds, flaw=None, nproc=1, steps=8, **options):
    """Drill the trainer, and return the report and the lines of its log."""
    lines = []
    arguments = [f"--nproc={nproc}", f"--steps={steps}", *([f"--flaw={flaw}"] if flaw else [])]
    report = run_drill(
        lambda start: [sys.executable, TRAINER, str(start.run), *arguments],
        DrillPlan(kinds=kinds, processes=nproc, **options),
        log=lines.append,
    )
    return report, lines


@pytest.mark.slow
def test_a_sound_trainer_recovers_from_every_fault():
    report, _ = drilled(*FAULTS, nproc=2, seed=5, patience=8.0)
    found = {each.fault.kind: each for each in report.outcomes}
    skipped = {kind: each.skipped for kind, each in found.items() if each.skipped}
    assert skipped.keys() <= {"full_disk", "read_only"}, skipped
    assert all("needs root" in reason for reason in skipped.values())
    assert report.conclusion == "passed", drill_as_text(report)
    restarted = {kind for kind, each in found.items() if each.restarts}
    assert restarted >= {"kill", "raise", "hang", "stale_lock", "damaged", "nan"}
    assert found["port"].restarts >= 2
    assert found["slow"].seconds_lost > 1.0
    assert found["hang"].seconds_lost > 8.0
    assert found["stop"].steps_lost == 0
    assert "Error: port" in found["port"].ends[1]


@pytest.mark.parametrize(
    ("flaw", "kind", "conclusion", "printed"),
    [
        ("loses", "stop", "failed", "losses: loss, in step"),
        ("no-verify", "damaged", "failed", "is not complete after 3 starts; the last ended with exit code 1"),
        ("gives-up", "stop", "failed", "starts 2 to 3 ended with exit code 1: Error: the folder is in use"),
        ("random", "stop", "not repeatable", "two undisturbed runs differ"),
    ],
)
def test_a_flaw_is_found(flaw, kind, conclusion, printed):
    report, _ = drilled(kind, flaw=flaw, seed=1, max_restarts=2)
    assert report.conclusion == conclusion
    assert printed in drill_as_text(report)


def test_the_seed_chooses_the_moments_and_rounds_have_different_ones():
    first, _ = drilled("stop", seed=3, rounds=2)
    again, _ = drilled("stop", seed=3)
    moments = [each.fault for each in first.outcomes]
    assert (len(moments), moments[0] == again.outcomes[0].fault, moments[0] == moments[1]) == (2, True, False)


def test_a_duration_replaces_the_number_of_rounds():
    report, _ = drilled("stop", seconds=0.1)
    assert len(report.outcomes) == 1


def test_what_is_skipped_is_named_and_nothing_injected_is_no_success():
    report, lines = drilled("port")
    assert (report.conclusion, report.outcomes[0].skipped) == ("failed", "a single process opens no port")
    assert lines[-1] == "port: skipped: a single process opens no port"
    assert "none, because nothing was injected" in drill_as_text(report)


def test_data_of_a_report_are_json():
    report, _ = drilled("kill", seed=2)
    (fault,) = json.loads(json.dumps(drill_as_data(report)))["faults"]
    assert (fault["fault"], fault["equal"], fault["restarts"], fault["skipped"]) == ("kill", True, 1, None)
    assert fault["ends"][0] == "was killed by signal 9"


def test_a_run_of_one_step_leaves_nothing_to_recover():
    with pytest.raises(DrillError, match="steps: the run has 1"):
        drilled("kill", steps=1)


def test_an_undisturbed_run_that_fails_is_an_error_with_its_output():
    with pytest.raises(VerificationError, match=r"undisturbed run ended with exit code 3(.|\n)*no such data"):
        run_drill(
            lambda start: [sys.executable, "-c", "import sys; print('no such data'); sys.exit(3)"],
            DrillPlan(kinds=("kill",)),
            log=lambda line: None,
        )


def test_a_folder_with_files_is_rejected(tmp_path):
    (tmp_path / "something").touch()
    with pytest.raises(VerificationError, match="is not empty"):
        run_drill(lambda start: [], DrillPlan(kinds=("kill",)), folder=tmp_path)


def test_the_command_line_drills_any_command(tmp_path):
    pytest.importorskip("typer", reason="typer is not installed")
    command = [
        sys.executable,
        "-m",
        "mb_verify",
        "drill",
        "--faults",
        "raise",
        "--out",
        str(tmp_path / "kept"),
    ]
    ended = subprocess.run(
        [*command, "--", sys.executable, TRAINER, "{run}"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "passed: 1 faults injected, 0 skipped" in ended.stdout
    assert "InjectedFaultError: fault of a drill" in (tmp_path / "kept/logs/001-raise.0.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [(["--faults", "fire", "--", "{run}"], "fire unknown"), (["--", "train"], "needs {run}")],
)
def test_unreadable_requests_are_exit_code_2(arguments, printed):
    pytest.importorskip("typer", reason="typer is not installed")
    from typer.testing import CliRunner

    from mb_verify.cli.app import app

    ended = CliRunner().invoke(app, ["drill", *arguments])
    assert (ended.exit_code, printed in ended.output) == (2, True)
