"""`mb-verify compare`, and what it prints without its extra."""

import json
import subprocess
import sys

import pytest
from written_records import STATE, written


def test_without_typer_the_program_names_the_extra(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')")
    ended = subprocess.run(
        [sys.executable, "-m", "mb_verify"],
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, 'pip install "mb-verify[cli]"' in ended.stderr) == (2, True)


@pytest.fixture
def invoke():
    pytest.importorskip("typer", reason="typer is not installed")
    from typer.testing import CliRunner

    from mb_verify.cli.app import app

    return lambda *arguments: CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_equal_and_different_records_have_their_exit_codes(tmp_path, invoke):
    written(tmp_path / "a", steps=range(3))
    written(tmp_path / "b", steps=range(3), state={**STATE, "random streams: torch": "other"})
    assert invoke(tmp_path / "a", tmp_path / "a").exit_code == 0
    ended = invoke(tmp_path / "a", tmp_path / "b")
    assert ended.exit_code == 1
    assert "random streams: torch, after step 0, rank 0: ab0 in" in ended.output
    found = json.loads(invoke(tmp_path / "a", tmp_path / "b", "--json").output)
    assert (found["equal"], found["first"]["other"], found["compared"]["losses"]["different"]) == (
        False,
        "other",
        0,
    )


def test_a_record_that_cannot_be_read_is_exit_code_2(tmp_path, invoke):
    ended = invoke(tmp_path, tmp_path)
    assert (ended.exit_code, "has recorded no step" in ended.output) == (2, True)


def test_a_difference_before_the_interruption_is_reported(tmp_path, invoke):
    written(tmp_path / "a", steps=range(4))
    written(tmp_path / "b", steps=range(3), state={**STATE, "parameters: weight": "x{step}"})
    written(tmp_path / "b", steps=range(2, 4), start=1)
    assert (
        "This is before the interruption, so the resume is not at fault."
        in invoke(tmp_path / "a", tmp_path / "b").output
    )


@pytest.mark.parametrize(("text", "why"), [("{]", "is damaged"), ("[]", "is not a part of a record")])
def test_a_damaged_record_is_named(tmp_path, invoke, text, why):
    written(tmp_path / "a", steps=range(2))
    (tmp_path / "a" / "rank-0.0.jsonl").write_text(text + "\n")
    ended = invoke(tmp_path / "a", tmp_path / "a")
    assert (ended.exit_code, ended.output.count("\n")) == (2, 1)
    assert (
        f"rank-0.0.jsonl: {why}" in ended.output or f"rank-0.0.jsonl: has a line that {why}" in ended.output
    )
