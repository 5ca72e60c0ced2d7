"""Options of a command that proves a resume, for programs of trainers. Needs the extra `cli`."""

from pathlib import Path
from typing import Annotated

import typer

from mb_verify.errors import InterruptionError
from mb_verify.interruption import Interruption

Steps = Annotated[int, typer.Option("--steps", min=2, metavar="N", help="Steps of the run.")]
Cut = Annotated[int, typer.Option("--cut", min=1, metavar="K", help="Step after which it is interrupted.")]
Kill = Annotated[
    bool, typer.Option("--kill", help="Kill it (SIGKILL) some steps after the checkpoint of step K.")
]
ResumeProcesses = Annotated[
    str | None,
    typer.Option(
        "--resume-nproc",
        metavar="N[,N...]",
        help="Resume with so many processes; several: interrupted at each multiple of K. Compares what was read.",
        show_default=False,
    ),
]
ProofFolder = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Keep both runs and what they recorded here.", show_default=False
    ),
]

OPTION_OF_FIELD = {"steps": "--steps", "step": "--cut", "kill": "--kill", "resumed_by": "--resume-nproc"}


def read_interruption(*, steps: int, cut: int, kill: bool, resume_nproc: str | None) -> Interruption:
    """Return the interruption that the options describe.

    Raises:
        typer.BadParameter: they describe none; names the option.
    """
    starts = [] if resume_nproc is None else resume_nproc.split(",")
    if not all(number.isdecimal() and int(number) > 0 for number in starts):
        raise typer.BadParameter(
            "must be a number above 0, or several with commas", param_hint="--resume-nproc"
        )
    try:
        return Interruption(steps=steps, step=cut, kill=kill, resumed_by=tuple(map(int, starts)))
    except InterruptionError as error:
        problem = error.problem.replace("resumed_by", "--resume-nproc")
        raise typer.BadParameter(problem, param_hint=OPTION_OF_FIELD[error.field]) from None
