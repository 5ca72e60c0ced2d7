"""`mb verify-resume`: the same run straight and cut, compared bit for bit."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mb_checkpoint.layout import STEP_TRACKER
from mb_config import TrainingConfig
from mb_launch import read_world, requested_port
from mb_loop import Callback, TrainOutcome
from mb_trainer.commands.errors import OutputExistsError, reported
from mb_trainer.commands.train import launch, refuse_inside_a_launcher
from mb_trainer.job import pretrain
from mb_trainer.reading import read_request
from mb_trainer.verification.compare import (
    Difference,
    Record,
    Verdict,
    VerificationError,
    compare,
    read_record,
)
from mb_trainer.verification.diagnosis import EXIT_CODES, Proof, conditions_of, diagnosis
from mb_trainer.verification.record import Killer, Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How the cut run is interrupted."""

    steps: int
    """Steps of the whole run."""
    step: int
    """After which it is interrupted."""
    kill: bool = False
    """By SIGKILL, some steps after the checkpoint, rather than by leaving in order."""
    resumed_by: tuple[int, ...] = ()
    """Processes of each further start; empty: one start, with as many as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a run."""

    run: Path
    """Run folder."""
    record: Path
    number: int
    processes: int
    overrides: tuple[str, ...]
    kill_after: int | None = None


def verify(
    words: Sequence[str],
    *,
    files: Sequence[Path],
    out: Path | None,
    nproc: int | None,
    cut: Cut,
    as_json: bool,
) -> int:
    """Run both, compare, print the result, and return its exit code (`EXIT_CODES`)."""

    def work() -> int:
        refuse_inside_a_launcher(os.environ)
        request = read_request(words, files=files)  # what cannot be read is said before anything runs
        length = overrides_of_length(request.config.train, cut.steps)
        with ExitStack() as stack:
            folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mb-verify-")))
            if out is not None and out.exists() and any(out.iterdir()):
                raise OutputExistsError(
                    f"{out}: is not empty, and both runs must begin afresh. Give another --out."
                )
            proof = prove([*words, *length], files=files, folder=folder, processes=nproc or 1, cut=cut)
        print(json.dumps(proof_as_data(proof, cut)) if as_json else proof_as_text(proof, cut))
        return EXIT_CODES[proof.conclusion]

    return reported(work)


def overrides_of_length(train: TrainingConfig, steps: int) -> tuple[str, ...]:
    """Return what makes a run as long as the proof, counted as the recipe counts: in samples or in steps.

    Batches that grow or change have no fixed number of samples in a step: such a run is counted in steps.
    """
    constant = train.rampup_batch_size is None and train.step_batch_size_schedule is None
    if train.train_samples is not None and train.global_batch_size is not None and constant:
        return (f"train.train_samples={steps * train.global_batch_size}",)
    counted = {"num_epochs": train.num_epochs, "train_samples": train.train_samples}
    others = (f"train.{name}=null" for name, value in counted.items() if value is not None)
    return (f"train.train_iters={steps}", *others)


def prove(words: Sequence[str], *, files: Sequence[Path], folder: Path, processes: int, cut: Cut) -> Proof:
    """Make all starts of both runs, each in processes of its own, and compare them.

    Where they differ, a second straight run is made and compared with the first. The words give a run its length.

    Raises:
        VerificationError: a start failed, ended early, or did not go on where the one before had stopped.
    """
    same_ranks = not cut.resumed_by
    straight = straight_run(words, files=files, folder=folder, name="straight", processes=processes)
    record = folder / "records" / "cut"
    for start in starts_of(cut, run=folder / "cut", record=record, processes=processes):
        begin(start, words, files=files)
    records = {"straight": straight, "cut": read_record(record)}
    verdict = compare(straight, records["cut"], same_ranks=same_ranks)
    need_whole_runs(verdict, cut, folder=folder)
    again: Verdict | None = None
    if not verdict.equal:
        say("different; a second straight run shows whether this machine repeats a run at all")
        name = "straight-again"
        records[name] = straight_run(words, files=files, folder=folder, name=name, processes=processes)
        again = compare(straight, records[name], same_ranks=same_ranks)
    return Proof(verdict=verdict, straight_again=again, conditions=conditions_of(records))


def straight_run(
    words: Sequence[str], *, files: Sequence[Path], folder: Path, name: str, processes: int
) -> Record:
    """Make a run without an interruption and return its record.

    Raises:
        VerificationError: it failed.
    """
    run, record = folder / name, folder / "records" / name
    overrides = (*common(run), "checkpoint.save_interval=null")
    start = Start(run=run, record=record, number=0, processes=processes, overrides=overrides)
    begin(start, words, files=files)
    return read_record(record)


def need_whole_runs(verdict: Verdict, cut: Cut, *, folder: Path) -> None:
    """Refuse a comparison of less than was asked for.

    Raises:
        VerificationError: the straight run ended early, or the cut one did not go on where it was cut.
    """
    if verdict.steps != cut.steps:
        raise VerificationError(
            f"the straight run ended after step {verdict.steps}, not {cut.steps}, so that only a part would be "
            f"compared. Look into {folder / 'straight'} (keep it with --out)."
        )
    expected = tuple(cut.step * (number + 1) for number in range(len(verdict.resumed_at)))
    if verdict.resumed_at != expected:
        raise VerificationError(
            f"the cut run went on at step {verdict.resumed_at}, not {expected}: the checkpoint was not there or not "
            f"taken, so that no resume was compared. Look into {folder / 'cut'} (keep it with --out)."
        )


def common(run: Path) -> tuple[str, ...]:
    """Return the overrides of every start: a folder of its own, no early end, no trackers on the network."""
    return (
        "train.exit_interval=null",
        "train.exit_duration_in_mins=null",
        f"checkpoint.save={run / 'checkpoints'}",
        f"checkpoint.load={run / 'checkpoints'}",
        "checkpoint.ckpt_step=null",
        "logger.tensorboard_dir=null",
        "logger.save_config_filepath=null",
        "logger.wandb_project=null",
        "logger.mlflow_experiment=null",
        "logger.comet_project=null",
    )


def starts_of(cut: Cut, *, run: Path, record: Path, processes: int) -> list[Start]:
    """Return the starts of the cut run: one up to the interruption, and those that go on."""
    after = cut.resumed_by or (processes,)
    overrides = common(run)
    interval = f"checkpoint.save_interval={cut.step if cut.kill else 'null'}"
    starts = []
    for number, count in enumerate((processes, *after)):
        leaves = number < len(after) and not cut.kill
        starts.append(
            Start(
                run=run,
                record=record,
                number=number,
                processes=count,
                overrides=(*overrides, interval, f"train.exit_interval={cut.step if leaves else 'null'}"),
                kill_after=cut.step if cut.kill and number == 0 else None,
            )
        )
    return starts


def begin(start: Start, words: Sequence[str], *, files: Sequence[Path]) -> None:
    """Run one start in processes of its own, and check that it ended as it has to.

    Raises:
        VerificationError: it did not.
    """
    began = time.monotonic()
    what = f"{start.run.name} run" + (f", start {start.number + 1}" if start.number else "")
    words = [*words, *start.overrides]
    options = [f"--out={start.run}", f"--record={start.record}", f"--start={start.number}"]
    options += [f"--config={file}" for file in files]
    options += [f"--nproc={start.processes}"] if start.processes > 1 else []
    options += [] if start.kill_after is None else [f"--kill-after={start.kill_after}"]
    command = [sys.executable, "-m", "mb_trainer", "recorded-run", *options, "--", *words]
    ended = subprocess.run(command, text=True, capture_output=True, check=False)
    if start.kill_after is not None and ended.returncode != 0:
        tracker = start.run / "checkpoints" / STEP_TRACKER
        killed = ended.returncode < 0 or "SIGKILL" in ended.stderr
        if killed and tracker.is_file() and tracker.read_text().strip() == str(start.kill_after):
            say(f"{what}: killed after step {start.kill_after}, {time.monotonic() - began:.0f} s")
            return
    elif ended.returncode == 0 and start.kill_after is None:
        say(f"{what}: done, {time.monotonic() - began:.0f} s")
        return
    if ended.returncode == 0:
        raise VerificationError(
            f"{what}: ended before the checkpoint of step {start.kill_after} was whole, so that nothing could be "
            "killed. Give more --steps or an earlier --cut."
        )
    raise VerificationError(
        f"{what}: ended with exit code {ended.returncode}; the same happens in `mb pretrain`.\n{ended.stderr.strip()}"
    )


def say(text: str) -> None:
    """Tell how far it is; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a recorded run is told beside what `mb pretrain` is."""

    folder: Path
    start: int
    kill_after: int | None = None


def recorded_run(
    words: Sequence[str], *, files: Sequence[Path], out: Path, nproc: int | None, recording: Recording
) -> int:
    """Do what `mb pretrain` does, with a recorder; hidden from users."""

    def work() -> int:
        if nproc is not None and nproc > 1:
            options = [f"--out={out}", f"--record={recording.folder}", f"--start={recording.start}"]
            options += [f"--config={file}" for file in files]
            options += [] if recording.kill_after is None else [f"--kill-after={recording.kill_after}"]
            arguments = ["recorded-run", *options, "--", *words]
            return launch(arguments, processes=nproc, port=requested_port(os.environ))
        request = read_request(words, files=files)
        world = read_world(os.environ)
        callbacks: list[Callback] = [Recorder(recording.folder, rank=world.rank, start=recording.start)]
        if recording.kill_after is not None:
            checkpoints = out / "checkpoints"
            callbacks.append(
                Killer(recording.kill_after, checkpoints=checkpoints, kill=world.is_logging_rank)
            )
        outcome: TrainOutcome = pretrain(
            request.config,
            name=request.name,
            out=out,
            provenance=request.provenance,
            callbacks=callbacks,
        )
        return outcome.exit_code

    return reported(work)


def proof_as_text(proof: Proof, cut: Cut) -> str:
    """Return the table, the first difference, and what helps to find its cause."""
    return "\n".join([as_text(proof.verdict, cut), *diagnosis(proof)])


def proof_as_data(proof: Proof, cut: Cut) -> dict[str, object]:
    """Return the same for programs; `verdict` is "equal", "resume differs" or "not repeatable"."""
    again = proof.straight_again
    return {
        **as_data(proof.verdict, cut),
        "verdict": proof.conclusion,
        "loaded_state_equal": proof.verdict.loaded_equal,
        "straight_again": None
        if again is None
        else {"equal": again.equal, "first": first_as_data(again.first, "straight_again")},
        "conditions": proof.conditions,
    }


def first_as_data(first: Difference | None, second: str) -> dict[str, object] | None:
    """Return the first difference for programs; the value of the second run is under its name."""
    if first is None:
        return None
    return {
        "category": first.category,
        "name": first.name,
        "step": first.place.step,
        "held": first.place.held,
        "rank": first.place.rank,
        "straight": first.straight,
        second: first.cut,
    }


def as_text(verdict: Verdict, cut: Cut) -> str:
    """Return the table and the first difference."""
    rows = [("compared", "names", "values", "different")]
    rows += [
        (line.category, str(len(line.names)), f"{line.compared:,}", f"{line.different:,}")
        for line in verdict.lines
    ]
    table = [f"{a:<16}{b:>8}{c:>12}{d:>12}" for a, b, c, d in rows]
    ranks = "" if cut.resumed_by else f" on {verdict.ranks} rank{'s' if verdict.ranks > 1 else ''}"
    how = "killed after" if cut.kill else "cut at"
    told = f"{verdict.steps} steps{ranks}, {how} {', '.join(map(str, verdict.resumed_at))}"
    if verdict.first is None:
        return "\n".join([*table, f"equal, bit for bit: {told}"])
    return "\n".join([*table, f"different: {told}; first in", f"  {verdict.first}"])


def as_data(verdict: Verdict, cut: Cut) -> dict[str, object]:
    """Return the same for programs."""
    return {
        "equal": verdict.equal,
        "steps": verdict.steps,
        "resumed_at": list(verdict.resumed_at),
        "killed": cut.kill,
        "compared": {
            line.category: {"names": len(line.names), "values": line.compared, "different": line.different}
            for line in verdict.lines
        },
        "first": first_as_data(verdict.first, "cut"),
    }
