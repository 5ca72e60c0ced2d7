"""Drill: a run under injected faults, compared with the same run without them. No torch.

The undisturbed run is made once. For each fault the run is made again in a new folder, the fault is injected at its
moment, and the same command is started again until the run is complete, as a cluster would. A trainer resumes from the
newest checkpoint of its folder.
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from mb_verify.drill.fault_injectors import DrilledRun, FaultInjector, reason_to_skip
from mb_verify.drill.plan import DrillPlan, PlannedFault, plan_faults
from mb_verify.drill.progress import (
    StartProgress,
    final_values,
    read_progress,
)
from mb_verify.drill.report import DrillReport, FaultOutcome, RunResult, first_difference, gaps_of, outcome_of
from mb_verify.drill.start_process import StartedCommand
from mb_verify.errors import DrillError, VerificationError
from mb_verify.record.environment import PREFIX, RECORD, RecordingRequest
from mb_verify.resume.interruption import RunStart

MakeCommand = Callable[[RunStart], Sequence[str]]
"""Returns program and arguments of a start; the same for all starts of a run."""

POLL_SECONDS = 0.05
MIN_PATIENCE = 30.0
"""Seconds without a completed step that a run has at least; four times as many before the first and after the last."""


def run_drill(
    make_command: MakeCommand,
    plan: DrillPlan,
    *,
    folder: Path | None = None,
    checkpoints: str = "checkpoints",
    log: Callable[[str], None] = print,
) -> DrillReport:
    """Make the undisturbed run and a run for each fault, and compare them.

    The trainer records itself as its environment requests (`callbacks_from_environment`, or
    `record_file_from_environment`), and resumes from the newest checkpoint when the same command is started again.

    Args:
        make_command: returns the command of a start.
        plan: which faults, and when.
        folder: receives the run folders, `records/` and `logs/`, and must be empty; None: a temporary folder.
        checkpoints: name of the folder below a run folder that holds its checkpoints.
        log: receives progress messages.

    Raises:
        DrillError: the undisturbed run has fewer than two steps.
        VerificationError: the folder is not empty, or the undisturbed run failed or recorded nothing.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise VerificationError(f"{folder}: is not empty, and a drill starts afresh. Give another folder.")
    with TemporaryDirectory(prefix="mb-drill-") if folder is None else nullcontext(folder) as name:
        return Drill(make_command, plan, Path(name).absolute(), checkpoints=checkpoints, log=log).run()


class Drill:
    """A drill in an empty folder; see `run_drill`."""

    def __init__(
        self,
        make_command: MakeCommand,
        plan: DrillPlan,
        folder: Path,
        *,
        checkpoints: str,
        log: Callable[[str], None],
    ) -> None:
        self._make_command = make_command
        self._plan = plan
        self._folder = folder
        self._checkpoints = checkpoints
        self._log = log
        self._patience = self._start_patience = float("inf")
        self._last_step: int | None = None

    def run(self) -> DrillReport:
        """Make all runs and return the report."""
        undisturbed = self._make_undisturbed("undisturbed")
        gaps = gaps_of(undisturbed)
        steps = max(gaps)
        if steps < 2:
            raise DrillError(
                f"steps: the run has {steps}, and a fault needs a step to recover in. Make it longer."
            )
        self._last_step = steps
        longest = max(gap for step, gap in gaps.items() if step > 1)
        self._patience = self._plan.patience or MIN_PATIENCE + 3 * longest
        self._start_patience = max(self._patience, 4 * MIN_PATIENCE + 3 * gaps[1])
        seconds = undisturbed.seconds(from_first_step=False)
        self._log(f"undisturbed run: {steps} steps, {seconds:.1f} s")
        outcomes = self._make_rounds(undisturbed, gaps)
        repetition = None
        if any(outcome.difference for outcome in outcomes):
            self._log("different; a second undisturbed run shows whether this machine repeats a run at all")
            again = self._make_undisturbed("undisturbed-again")
            repetition = first_difference(undisturbed.values, again.values)
        return DrillReport(
            plan=self._plan,
            steps=steps,
            step_seconds=median(sorted(gaps.values())[:-1]),
            seconds=seconds,
            outcomes=tuple(outcomes),
            repetition=repetition,
        )

    def _make_rounds(self, undisturbed: RunResult, gaps: Mapping[int, float]) -> list[FaultOutcome]:
        rng, deadline = random.Random(self._plan.seed), time.monotonic() + (self._plan.seconds or 0)
        outcomes: list[FaultOutcome] = []
        number = 0

        def has_time() -> bool:
            return number < self._plan.rounds if self._plan.seconds is None else time.monotonic() < deadline

        while has_time():
            faults = plan_faults(self._plan.kinds, steps=max(gaps), processes=self._plan.processes, rng=rng)
            for fault in faults:
                name = f"{len(outcomes) + 1:03}-{fault.kind}"
                outcomes.append(self._make_outcome(fault, name, undisturbed, gaps))
                if self._plan.seconds is not None and time.monotonic() >= deadline:
                    break
            number += 1
        return outcomes

    def _make_outcome(
        self, fault: PlannedFault, name: str, undisturbed: RunResult, gaps: Mapping[int, float]
    ) -> FaultOutcome:
        reason = reason_to_skip(fault.kind, processes=self._plan.processes, folder=self._folder)
        if reason is not None:
            self._log(f"{fault.kind}: skipped: {reason}")
            return FaultOutcome(fault=fault, skipped=reason)
        folders = self._folders(name)
        with FaultInjector(fault, folders, step_seconds=gaps[max(2, fault.step)]) as injector:
            disturbed = self._make_run(folders, injector)
            injected = injector.injected_at is not None
        if not injected:
            skipped = f"the run had ended before its moment ({disturbed.ends[-1]})"
            self._log(f"{fault.kind}: skipped: {skipped}")
            return FaultOutcome(fault=fault, skipped=skipped, ends=disturbed.ends)
        outcome = outcome_of(fault, disturbed, undisturbed)
        result = "recovered" if outcome.passed else outcome.not_recovered or "different"
        self._log(f"{fault.kind}: {result}, {len(disturbed.starts)} starts")
        return outcome

    def _make_undisturbed(self, name: str) -> RunResult:
        folders = self._folders(name)
        folders.record.mkdir(parents=True)
        run = self._make_run(folders, None)
        if not run.complete or not run.values:
            raise VerificationError(
                f"the {name} run {run.ends[0]} and recorded {len(run.values)} results, so there is nothing to "
                f"compare with. See the end of its output:\n{end_of(self._log_file(name, 0))}"
            )
        return run

    def _make_run(self, folders: DrilledRun, injector: FaultInjector | None) -> RunResult:
        """Start the command again until the run is complete or may not be restarted."""
        began, ends = time.time(), []
        starts: list[StartProgress] = []
        complete = False
        while not complete and len(starts) <= (self._plan.max_restarts if injector else 0):
            number = len(starts)
            ends.append(self._make_start(folders, number, injector))
            starts.append(read_progress(folders.record, start=number))
            if injector is not None:
                injector.after_start()
            complete = ends[-1].startswith(ENDED) and not self._is_unfinished(starts[-1])
        return RunResult(
            starts=tuple(starts),
            ends=tuple(ends),
            began=began,
            complete=complete,
            values=final_values(folders.record),
        )

    def _make_start(self, folders: DrilledRun, number: int, injector: FaultInjector | None) -> str:
        """Run the command to its end, or until it makes no progress. Return how it ended."""
        name = folders.folder.name
        processes = self._plan.processes
        start = RunStart(
            run=folders.folder,
            record=folders.record,
            number=number,
            processes=processes,
            save_every=self._plan.save_every,
        )
        request = RecordingRequest(folder=folders.record, start=number, values="results")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
        more = {} if injector is None else injector.environment(number)
        log = self._log_file(name, number)
        started = StartedCommand(
            self._make_command(start),
            environment={**inherited, **request.variables(), **more},
            log=log,
            mark=RECORD,
        )
        try:
            quiet = self._watch(started, folders, number, injector)
        finally:
            # A launcher may end before its ranks: what still runs would write into the folder of the next start.
            remaining = started.kill(grace=5.0)
        # The fault itself may have ended the process between two polls.
        if injector is not None and number == 0:
            injector.poll(started, read_progress(folders.record, start=0), processes=processes)
        if quiet is not None:
            return f"completed no step for {quiet:.0f} s and was ended"
        return describe_end(started.exit_code or 0, log=log, remaining=remaining)

    def _watch(
        self, started: StartedCommand, folders: DrilledRun, number: int, injector: FaultInjector | None
    ) -> float | None:
        """Inject the fault while the command runs. Return its seconds without a step if they are too many."""
        steps, changed = 0, time.monotonic()
        while started.exit_code is None:
            progress = read_progress(folders.record, start=number)
            if injector is not None and number == 0:
                injector.poll(started, progress, processes=self._plan.processes)
            if len(progress.completed) != steps:
                steps, changed = len(progress.completed), time.monotonic()
            quiet = time.monotonic() - changed
            is_training = bool(steps) and progress.last_step != self._last_step
            if quiet > (self._patience if is_training else self._start_patience):
                return quiet
            time.sleep(POLL_SECONDS)
        return None

    def _is_unfinished(self, start: StartProgress) -> bool:
        """Return whether a start that ended in order has stopped before the last step of the undisturbed run."""
        return None not in (start.last_step, self._last_step) and start.last_step != self._last_step

    def _folders(self, name: str) -> DrilledRun:
        run = self._folder / name
        return DrilledRun(
            folder=run, checkpoints=run / self._checkpoints, record=self._folder / "records" / name
        )

    def _log_file(self, name: str, start: int) -> Path:
        return self._folder / "logs" / f"{name}.{start}.txt"


ENDED = "ended in order"


def describe_end(exit_code: int, *, log: Path, remaining: Sequence[str] = ()) -> str:
    """Return how a start ended, with its last error line and the processes that it left."""
    ended = f"; processes that it left were ended: {', '.join(remaining)}" if remaining else ""
    if exit_code == 0:
        return ENDED + ended
    lines = [line.strip() for line in log.read_text(errors="replace", encoding="utf-8").splitlines()]
    errors = [line for line in lines if line.startswith(("error:", "Error")) or "Error: " in line]
    how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
    return how + (f": {errors[-1]}" if errors and exit_code > 0 else "") + ended


def end_of(log: Path, *, lines: int = 20) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace", encoding="utf-8").splitlines()[-lines:])
