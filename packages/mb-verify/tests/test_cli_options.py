"""Options of a command that proves a resume, in a program that uses them."""

import pytest

typer = pytest.importorskip("typer", reason="typer is not installed")

from typer.testing import CliRunner  # noqa: E402

from mb_verify import Interruption  # noqa: E402
from mb_verify.cli_options import Cut, Kill, ProofFolder, ResumeProcesses, Steps, read_interruption  # noqa: E402

app = typer.Typer(rich_markup_mode=None)


@app.command()
def prove(
    steps: Steps = 20,
    cut: Cut = 7,
    kill: Kill = False,
    resume_nproc: ResumeProcesses = None,
    out: ProofFolder = None,
):
    print(out or "temporary")
    print(read_interruption(steps=steps, cut=cut, kill=kill, resume_nproc=resume_nproc))


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
