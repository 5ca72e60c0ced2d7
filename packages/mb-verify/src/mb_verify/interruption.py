"""Proof of an exact resume: which starts of a run are made, and their comparison. No torch.

A straight run is made in one start, the cut run in two or more. `prove` calls back for each start, so that it works
with any trainer that can be stopped after a step, or killed, and resumed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mb_verify.comparison import Verdict, compare
from mb_verify.diagnosis import ResumeProof, conditions_of
from mb_verify.errors import VerificationError
from mb_verify.run_record import RunRecord, read_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Interruption of the cut run."""

    steps: int
    """Steps of the complete run."""
    step: int
    """Step after which it is interrupted."""
    kill: bool = False
    """Interrupted by SIGKILL some steps after the checkpoint, rather than by leaving in order."""
    resumed_by: tuple[int, ...] = ()
    """Processes of each further start; empty: one further start, with the same number of processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """One start of a run."""

    run: Path
    """Folder of the run: `straight`, `cut` or `straight-again`."""
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
        """Readable name, such as "cut run, start 2"."""
        return f"{self.run.name} run" + (f", start {self.number + 1}" if self.number else "")


def prove(
    make_start: Callable[[RunStart], None],
    *,
    folder: Path,
    processes: int,
    interruption: Interruption,
    log: Callable[[str], None] = print,
) -> ResumeProof:
    """Make all starts of both runs and compare their records.

    Where they differ, a second straight run is made and compared with the first: runs that cannot be repeated prove
    nothing about the resume.

    Args:
        make_start: runs one start to its end with a `Recorder` or `RecordFile` that writes to `record`, and raises
            where it fails.
        folder: receives the run folders and `records/`.
        processes: of each start, unless `interruption.resumed_by` gives others.
        interruption: length of the run, and where it is interrupted.
        log: receives progress messages.

    Raises:
        VerificationError: a run ended early, or did not resume where it was interrupted.
    """
    same_ranks = not interruption.resumed_by

    def straight(name: str) -> RunRecord:
        record = folder / "records" / name
        make_start(RunStart(run=folder / name, record=record, number=0, processes=processes))
        return read_record(record)

    first = straight("straight")
    for start in starts_of_cut_run(interruption, folder=folder, processes=processes):
        make_start(start)
    records = {"straight": first, "cut": read_record(folder / "records" / "cut")}
    verdict = compare(first, records["cut"], same_ranks=same_ranks)
    require_complete_runs(verdict, interruption, folder=folder)
    repeated: Verdict | None = None
    if not verdict.equal:
        log("different; a second straight run shows whether this machine repeats a run at all")
        records["straight-again"] = straight("straight-again")
        repeated = compare(first, records["straight-again"], same_ranks=same_ranks)
    return ResumeProof(verdict=verdict, straight_again=repeated, conditions=conditions_of(records))


def starts_of_cut_run(interruption: Interruption, *, folder: Path, processes: int) -> list[RunStart]:
    """Return the starts of the cut run: one up to the interruption, and those that resume."""
    resumes = interruption.resumed_by or (processes,)
    kill, step = interruption.kill, interruption.step
    return [
        RunStart(
            run=folder / "cut",
            record=folder / "records" / "cut",
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
        VerificationError: the straight run ended early, or the cut one did not resume where it was interrupted.
    """
    if verdict.steps != interruption.steps:
        raise VerificationError(
            f"the straight run ended after step {verdict.steps}, not {interruption.steps}, so only a part would be "
            f"compared. See {folder / 'straight'}."
        )
    expected = tuple(interruption.step * (number + 1) for number in range(len(verdict.resumed_at)))
    if verdict.resumed_at != expected:
        raise VerificationError(
            f"the cut run resumed at step {verdict.resumed_at}, not {expected}: the checkpoint was missing or not "
            f"loaded, so that no resume was compared. See {folder / 'cut'}."
        )
