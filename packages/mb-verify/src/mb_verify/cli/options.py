"""Options of commands that prove a resume, drill a run or replay a step, for trainers. Needs the extra `cli`."""

import json
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, ClassVar

import typer

from mb_verify.comparison.diagnosis import EXIT_CODES
from mb_verify.comparison.verdict_text import proof_as_data, proof_as_text
from mb_verify.drill.plan import FAULTS, DrillPlan, read_kinds
from mb_verify.drill.report import DRILL_EXIT_CODES
from mb_verify.drill.run import MakeCommand, run_drill
from mb_verify.drill.text import drill_as_data, drill_as_text
from mb_verify.errors import DrillError, InterruptionError
from mb_verify.replay.step import ReplayPlan, plan_replay, run_replay
from mb_verify.replay.text import replay_as_data, replay_as_text
from mb_verify.resume.interruption import Interruption, RunStart, prove
from mb_verify.resume.start_command import run_start_command

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
ProofProcesses = Annotated[
    int, typer.Option("--nproc", min=1, metavar="N", help="Processes of the run on this machine.")
]
PrintJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ProofFolder = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Keep all runs and what they recorded here.", show_default=False
    ),
]

OPTION_OF_FIELD = {"steps": "--steps", "step": "--cut", "kill": "--kill", "resumed_by": "--resume-nproc"}
"""Field of `Interruption` -> option that sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOptions:
    """Options of the proof of a resume. Raises typer.BadParameter if they describe no interruption."""

    out: ProofFolder = None
    nproc: ProofProcesses = 1
    steps: Steps = 20
    cut: Cut = 7
    kill: Kill = False
    resume_nproc: ResumeProcesses = None
    as_json: PrintJson = False

    def __post_init__(self) -> None:
        """Check that they describe an interruption."""
        self.interruption()

    def interruption(self) -> Interruption:
        """Return the interruption that the options describe."""
        starts = [] if self.resume_nproc is None else self.resume_nproc.split(",")
        if not all(number.isdecimal() and int(number) > 0 for number in starts):
            raise typer.BadParameter(
                "must be a number above 0, or several with commas", param_hint="--resume-nproc"
            )
        try:
            return Interruption(
                steps=self.steps, step=self.cut, kill=self.kill, resumed_by=tuple(map(int, starts))
            )
        except InterruptionError as error:
            problem = error.problem.replace("resumed_by", "--resume-nproc")
            raise typer.BadParameter(problem, param_hint=OPTION_OF_FIELD[error.field]) from None

    def run(self, make_command: MakeCommand, *, tracker: Path) -> int:
        """Run with and without the interruption, compare, print the result and return its exit code.

        The result goes to stdout, progress to stderr.

        Args:
            make_command: returns the command of a start.
            tracker: file below a run folder that holds the step of its newest complete checkpoint.

        Raises:
            VerificationError: as in `prove`.
        """
        log = partial(print, file=sys.stderr, flush=True)  # results go to stdout

        def make_start(start: RunStart) -> None:
            run_start_command(start, make_command(start), tracker=start.run / tracker, log=log)

        interruption = self.interruption()
        proof = prove(make_start, folder=self.out, processes=self.nproc, interruption=interruption, log=log)
        print(
            json.dumps(proof_as_data(proof, interruption))
            if self.as_json
            else proof_as_text(proof, interruption)
        )
        return EXIT_CODES[proof.conclusion]


DrillSteps = Annotated[int, typer.Option("--steps", min=2, metavar="N", help="Steps of the run.")]
SaveEvery = Annotated[
    int, typer.Option("--save-every", min=1, metavar="N", help="Steps between two checkpoints.")
]
Faults = Annotated[
    str | None,
    typer.Option(
        "--faults",
        metavar="KIND[,KIND...]",
        help=f"Faults to inject: {', '.join(FAULTS)}. Default: all.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the moments and ranks of the faults.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Inject all faults so often.")]
Minutes = Annotated[
    float | None,
    typer.Option("--minutes", min=0.0, help="Inject faults for so long instead.", show_default=False),
]
MaxRestarts = Annotated[
    int, typer.Option("--max-restarts", min=1, help="Restarts after which a run counts as lost.")
]
Patience = Annotated[
    float | None,
    typer.Option(
        "--patience",
        min=1.0,
        metavar="SECONDS",
        help="End a run that makes no progress for so long; default: three times the undisturbed run's longest pause.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDrillOptions:
    """Options of a drill of a command, which sets its steps and its checkpoints itself."""

    save_every: ClassVar[int | None] = None
    nproc: ProofProcesses = 1
    faults: Faults = None
    seed: Seed = 0
    rounds: Rounds = 1
    minutes: Minutes = None
    max_restarts: MaxRestarts = 4
    patience: Patience = None
    out: ProofFolder = None
    as_json: PrintJson = False

    def run(self, make_command: MakeCommand, *, tracker: Path) -> int:
        """Run the drill, print its report to stdout, and return the exit code. Progress goes to stderr.

        Args:
            make_command: returns the command of a start, with `steps` steps.
            tracker: file below a run folder that holds the step of its newest complete checkpoint; checkpoints are in
                the folder of this file.

        Raises:
            typer.BadParameter: a fault is unknown.
            VerificationError: as in `run_drill`.
        """
        try:
            kinds = read_kinds([] if self.faults is None else self.faults.split(","))
        except DrillError as error:
            raise typer.BadParameter(str(error).removeprefix("faults: "), param_hint="--faults") from None
        plan = DrillPlan(
            kinds=kinds,
            seed=self.seed,
            processes=self.nproc,
            rounds=self.rounds,
            seconds=None if self.minutes is None else 60 * self.minutes,
            save_every=self.save_every,
            max_restarts=self.max_restarts,
            patience=self.patience,
        )
        log = partial(print, file=sys.stderr, flush=True)  # results go to stdout
        checkpoints = str(tracker.parent)
        report = run_drill(make_command, plan, folder=self.out, checkpoints=checkpoints, log=log)
        print(json.dumps(drill_as_data(report)) if self.as_json else drill_as_text(report))
        return DRILL_EXIT_CODES[report.conclusion]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOptions(CommandDrillOptions):
    """Options of a drill of a trainer."""

    steps: DrillSteps = 12
    save_every: SaveEvery = 3  # type: ignore[misc]  # an option here


ReplayStep = Annotated[int, typer.Option("--step", min=1, help="Number of the step.", show_default=False)]
ReplayProcesses = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        min=1,
        metavar="N",
        help="Processes on this machine; default: those of the run.",
        show_default=False,
    ),
]
ReplayFolder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Keep the run of the replay here.", show_default=False),
]
AllTensors = Annotated[bool, typer.Option("--full", help="List all tensors, by layer.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of a replay, whatever trainer made the run."""

    step: ReplayStep
    nproc: ReplayProcesses = None
    out: ReplayFolder = None
    full: AllTensors = False
    as_json: PrintJson = False

    def run(
        self,
        run: Path,
        make_command: Callable[[ReplayPlan, int, Path], Sequence[str]],
        *,
        checkpoints: Collection[int],
    ) -> int:
        """Run the step again, print the result to stdout, and return 1 if it differs from the run, else 0.

        Progress goes to stderr. Without `out` the run of the replay is deleted.

        Args:
            run: Run folder.
            make_command: Returns the command of the replay for its plan, its processes and its run folder.
            checkpoints: Steps of the intact checkpoints of the run.

        Raises:
            VerificationError: As in `plan_replay` and `run_replay`.
        """
        plan = plan_replay(run, self.step, checkpoints=checkpoints)
        log = partial(print, file=sys.stderr, flush=True)  # results go to stdout
        keep = nullcontext(str(self.out)) if self.out else TemporaryDirectory(prefix="mb-replay-")
        with keep as name:
            command = make_command(plan, self.nproc or plan.processes, Path(name))
            replay = run_replay(plan, command, folder=Path(name), log=log)
        print(json.dumps(replay_as_data(replay)) if self.as_json else replay_as_text(replay, full=self.full))
        return 1 if replay.differences else 0
