"""Proof of an exact resume: which starts of a run are made, and their comparison. No torch.

The uninterrupted run is started once, the interrupted run twice or more. `prove` calls a function of the caller for
each start, so that it works with any trainer that can be stopped after a step, or killed, and resumed. All starts of a
run have the same folder (`RunStart.run`): the trainer's output folder, which contains its newest checkpoint.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mb_verify.comparison.diagnosis import ResumeProof, conditions_of
from mb_verify.comparison.records import Verdict, compare
from mb_verify.errors import InterruptionError, VerificationError
from mb_verify.record.environment import RecordingRequest
from mb_verify.record.run_record import RunRecord, read_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Where and how the interrupted run ends, and how it is resumed.

    Raises:
        InterruptionError: nothing is left to resume, a number is below 1, or a kill is combined with `resumed_by` or
            comes after step 1.
    """

    steps: int
    """Steps of the complete run."""
    step: int
    """Step after which it is interrupted."""
    kill: bool = False
    """Interrupted by SIGKILL some steps after the checkpoint, rather than by leaving in order."""
    resumed_by: tuple[int, ...] = ()
    """Processes of each further start; empty: one further start, with the same number of processes."""

    def __post_init__(self) -> None:
        """Reject an interruption that no run can have."""
        if self.step < 1:
            raise InterruptionError("step", f"{self.step} is before the first step; must be at least 1")
        if any(processes < 1 for processes in self.resumed_by):
            raise InterruptionError("resumed_by", f"{self.resumed_by} has a number below 1")
        if self.step * max(1, len(self.resumed_by)) >= self.steps:
            raise InterruptionError(
                "step",
                f"{self.step} leaves nothing to resume in {self.steps} steps; the last interruption must come before "
                "the end",
            )
        if self.kill and self.resumed_by:
            raise InterruptionError("kill", "cannot be combined with resumed_by")
        if self.kill and self.step == 1:
            raise InterruptionError(
                "kill",
                "needs a step of at least 2: with 1 each step saves, and the checkpoint of step 2 would be the newest "
                "one before the kill",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """One start of a run."""

    run: Path
    """Folder of the run: `uninterrupted`, `interrupted` or `uninterrupted-again`. The same for all starts of a run."""
    record: Path
    """Folder that receives the record."""
    number: int
    """0 for the first start of a run, one more for each resume."""
    processes: int
    leave_every: int | None = None
    """The start saves a checkpoint and ends in order after a multiple of so many steps; None: it runs to the end."""
    save_every: int | None = None
    """The start saves a checkpoint at each multiple of so many steps and trains on; None: at its end only."""
    kill_after: int | None = None
    """The start is killed once the checkpoint of this step is complete."""

    @property
    def name(self) -> str:
        """Readable name, such as "interrupted run, start 2"."""
        return f"{self.run.name} run" + (f", start {self.number + 1}" if self.number else "")

    def environment(self, *, tracker: Path | None = None) -> dict[str, str]:
        """Return the variables that `callbacks_from_environment` reads in the process of this start.

        Args:
            tracker: file that holds the step of the newest complete checkpoint; needed with `kill_after`.
        """
        request = RecordingRequest(
            folder=self.record, start=self.number, kill_after=self.kill_after, tracker=tracker
        )
        return request.variables()


def prove(
    make_start: Callable[[RunStart], None],
    *,
    folder: Path | None = None,
    processes: int = 1,
    interruption: Interruption,
    log: Callable[[str], None] = print,
) -> ResumeProof:
    """Make all starts of both runs and compare their records.

    If they differ, a second uninterrupted run is made and compared with the first: runs that cannot be repeated prove
    nothing about the resume.

    Args:
        make_start: runs one start to its end with a `Recorder` or `RecordFile` that writes to `record`, and raises
            where it fails. `run_start_command` does this with a command.
        folder: receives the run folders and `records/`, and must be empty; None: a temporary folder.
        processes: of each start, unless `interruption.resumed_by` gives others.
        interruption: length of the run, and where it is interrupted.
        log: receives progress messages.

    Raises:
        VerificationError: the folder is not empty, a run ended early, or did not resume where it was interrupted.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise VerificationError(
            f"{folder}: is not empty, and both runs must start afresh. Give another folder."
        )
    with TemporaryDirectory(prefix="mb-verify-") if folder is None else nullcontext(folder) as name:
        return prove_in(Path(name), make_start, processes=processes, interruption=interruption, log=log)


def prove_in(
    folder: Path,
    make_start: Callable[[RunStart], None],
    *,
    processes: int,
    interruption: Interruption,
    log: Callable[[str], None],
) -> ResumeProof:
    """Make the proof in an empty folder; see `prove`."""
    same_ranks = not interruption.resumed_by

    def uninterrupted(name: str) -> RunRecord:
        record = folder / "records" / name
        make_start(RunStart(run=folder / name, record=record, number=0, processes=processes))
        return read_record(record)

    first = uninterrupted("uninterrupted")
    for start in starts_of_interrupted_run(interruption, folder=folder, processes=processes):
        make_start(start)
    records = {"uninterrupted": first, "interrupted": read_record(folder / "records" / "interrupted")}
    verdict = compare(first, records["interrupted"], same_ranks=same_ranks)
    require_complete_runs(verdict, interruption, folder=folder)
    repeated: Verdict | None = None
    if not verdict.equal:
        log("different; a second uninterrupted run shows whether this machine repeats a run at all")
        records["uninterrupted-again"] = uninterrupted("uninterrupted-again")
        repeated = compare(first, records["uninterrupted-again"], same_ranks=same_ranks)
    return ResumeProof(verdict=verdict, repetition=repeated, conditions=conditions_of(records))


def starts_of_interrupted_run(interruption: Interruption, *, folder: Path, processes: int) -> list[RunStart]:
    """Return the starts of the interrupted run: one up to the interruption, and those that resume."""
    resumes = interruption.resumed_by or (processes,)
    kill, step = interruption.kill, interruption.step
    return [
        RunStart(
            run=folder / "interrupted",
            record=folder / "records" / "interrupted",
            number=number,
            processes=count,
            leave_every=step if number < len(resumes) and not kill else None,
            save_every=step if kill else None,
            kill_after=step if kill and number == 0 else None,
        )
        for number, count in enumerate((processes, *resumes))
    ]


def require_complete_runs(verdict: Verdict, interruption: Interruption, *, folder: Path) -> None:
    """Reject a comparison of less than was requested.

    Raises:
        VerificationError: the uninterrupted run ended early, or the interrupted one resumed at another step.
    """
    if verdict.last_step != interruption.steps:
        raise VerificationError(
            f"the uninterrupted run ended after step {verdict.last_step}, not {interruption.steps}, so only a "
            f"part would be compared. See {folder / 'uninterrupted'}."
        )
    expected = tuple(interruption.step * (number + 1) for number in range(len(verdict.resumed_at)))
    if verdict.resumed_at != expected:
        raise VerificationError(
            f"the interrupted run resumed at step {verdict.resumed_at}, not {expected}: the checkpoint was missing "
            f"or not loaded, so that no resume was compared. See {folder / 'interrupted'}."
        )
