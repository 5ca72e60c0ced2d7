"""Options of a command that proves a resume, in a program that uses them."""

import sys
from pathlib import Path

import pytest

typer = pytest.importorskip("typer", reason="typer is not installed")

from typer.testing import CliRunner  # noqa: E402

from mb_schema.commands import common_options  # noqa: E402
from mb_verify import Interruption  # noqa: E402
from mb_verify.cli.options import (  # noqa: E402
    ProofOptions,
)
from mb_verify.errors import VerificationError  # noqa: E402

app = typer.Typer(rich_markup_mode=None)


@app.command()
@common_options
def prove(options: ProofOptions):
    print(options.out or "temporary")
    print(options.interruption())


@pytest.mark.parametrize(
    ("options", "interruption"),
    [
        ([], Interruption(steps=20, step=7)),
        (["--steps=9", "--cut=3", "--kill"], Interruption(steps=9, step=3, kill=True)),
        (["--cut=4", "--resume-nproc=1,2"], Interruption(steps=20, step=4, resumed_by=(1, 2))),
    ],
)
def test_options_describe_an_interruption(options, interruption):
    assert CliRunner().invoke(app, [*options, "--out=here"]).output == f"here\n{interruption}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--steps=8", "--cut=8"],
            "Invalid value for --cut: 8 leaves nothing to resume in 8 steps; the last",
        ),
        (["--resume-nproc=1,none"], "Invalid value for --resume-nproc: must be a number above 0, or several"),
        (["--kill", "--resume-nproc=1"], "Invalid value for --kill: cannot be combined with --resume-nproc"),
    ],
)
def test_impossible_ones_are_rejected_with_the_option(options, message):
    ended = CliRunner().invoke(app, options)
    assert (ended.exit_code, message in " ".join(ended.output.split())) == (2, True)


def test_options_of_a_trainer_make_the_proof(tmp_path, capsys):
    program = (
        "import os, sys, mb_verify\n"
        "record = mb_verify.record_file_from_environment(os.environ)\n"
        "record.start(0)\n"
        "for step in (1, 2): record.step(step, {'losses: loss': str(step)})\n"
    )
    options = ProofOptions(steps=2, cut=1, out=tmp_path / "proof")
    with pytest.raises(VerificationError, match=r"resumed at step \(0,\), not \(1,\)"):
        options.run(lambda start: [sys.executable, "-c", program], tracker=Path("latest"))
    assert "interrupted run, start 2: done" in capsys.readouterr().err
    with pytest.raises(typer.BadParameter, match="leaves nothing to resume"):
        ProofOptions(steps=8, cut=8)
