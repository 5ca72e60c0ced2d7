"""Hang detection: a thread of each rank publishes the rank's position and reports when there is no progress. No torch.

The training loop only notes its position, which costs a fraction of a microsecond. The thread writes the position to
the store with every heartbeat, together with a counter, which distinguishes a rank whose process is stopped or dead
from one that waits. No rank reads the positions of others until there has been no progress for too long. Then each rank
dumps its stacks, and one of the stuck ranks claims the report (`ReportClaim`), reads the statuses of all ranks, twice,
and reports. The others wait for it, and one of them takes the claim over if that rank no longer responds.
"""

import faulthandler
import math
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from mb_resilience.hangs.collective_records import GroupCollectives, missing_collectives, read_dump_files
from mb_resilience.hangs.rank_status_store import Claim, HangStore, RankStatusStore, StatusRecord
from mb_resilience.hangs.report import REPORT_HEAD, RankStatus, format_report, innermost_frames
from mb_resilience.loop_events import CheckpointContext, StepContext

HEARTBEATS_PER_REPORT = 10
"""Heartbeats in the time after which a report is due."""
MAX_HEARTBEAT_SECONDS = 10.0
RESPONSE_HEARTBEATS = 3
"""Heartbeats within which a responsive rank sends at least one."""
LOST_CLAIM_HEARTBEATS = 2 * RESPONSE_HEARTBEATS
"""Heartbeats without one of the rank that has claimed a report, after which another rank takes the claim over."""
REPORT_FILE = "hang_report.txt"
"""Name of the report in its folder."""
RESUMED = "resumed after"


def newest_report(folder: Path, *, since: float) -> str | None:
    """Return the first line of the newest report in a folder.

    None if none was written since a time of the epoch, or the rank that reported it has resumed.
    """
    file = folder / REPORT_FILE
    if not file.is_file() or file.stat().st_mtime < since:
        return None
    lines = reversed(file.read_text(errors="replace", encoding="utf-8").splitlines())
    newest = next((line for line in lines if line.startswith(REPORT_HEAD) or RESUMED in line), "")
    return newest if newest.startswith(REPORT_HEAD) else None


def stack_file_name() -> str:
    """Return the name of the file with the stacks of all ranks of this machine."""
    return f"hang_stack_{platform.node() or 'unnamed'}.txt"


def print_to_stderr(text: str) -> None:
    """Print a text to stderr."""
    print(text, file=sys.stderr, flush=True)


class HangReporter:
    """Callback that reports hanging ranks; a context manager whose thread monitors this rank.

    Every rank has one. No collective. A loop without events calls `note` or `section`. A report does not end the run.
    It is made once per position at which a rank hangs, and a second message follows if the rank resumes. The report
    goes to `log` and to hang_report.txt in the folder, the stacks of all threads of each rank to one file of
    its machine there, hang_stack_HOST.txt, or to stderr while the folder does not exist.

    Args:
        seconds: time without progress after which a report is due; may be changed at any time, see the property.
        seconds_after_first_step: the same after the first step, which takes longer; None: unchanged.
        store: store shared by all ranks; None for a single rank. The thread uses it while the main thread may block in
            the store, so it must be a separate connection: `TCPStore(host, port, is_master=False)`.
        rank: rank of this process.
        world_size: number of ranks.
        attempt: name of this start of the run, identical on all ranks and different after each restart.
        folder: folder of the reports; used once it exists.
        reporting_rank: rank that reports if it is stuck and responsive; otherwise another such rank does.
        read_collectives: returns the collectives that this rank has called, such as
            `mb_resilience.hangs.flight_record_reader.read_collectives`; None: the report does not compare them.
        log: receives the report; called from the thread.
        clock: returns the time in seconds.

    Raises:
        ValueError: `seconds` is not positive, or the rank is outside of the world size.
    """

    def __init__(  # noqa: PLR0913 (numbers of the process group, and a clock for tests)
        self,
        *,
        seconds: float,
        seconds_after_first_step: float | None = None,
        store: HangStore | None = None,
        rank: int = 0,
        world_size: int = 1,
        attempt: str = "0",
        folder: Path | str | None = None,
        reporting_rank: int = 0,
        read_collectives: Callable[[], Sequence[GroupCollectives] | None] | None = None,
        log: Callable[[str], object] = print_to_stderr,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(
                f"HangReporter: rank={rank}, world_size={world_size}: the rank must be in the range of the world "
                "size. Pass the rank and size of the process group."
            )
        if seconds_after_first_step is not None:
            self.seconds = seconds_after_first_step  # rejects an invalid number now, not after the first step
        self.seconds = seconds
        self._later_seconds = seconds_after_first_step
        self._rank = rank
        self._statuses = RankStatusStore(store, rank=rank, world_size=world_size, attempt=attempt)
        self._configured_folder = None if folder is None else Path(folder)
        self._reporting_rank = reporting_rank
        self._read_collectives = read_collectives
        self._log_text = log
        self._clock = clock
        self._position: tuple[str, int | None] = ("setup", None)
        self._before_checkpoint: tuple[str, int | None] = self._position
        self._notes = self._seen = 0
        self._since = clock()
        self._is_due, self._has_reported = True, False
        self._investigation: Iterator[None] | None = None
        self._heartbeats = 0
        self._heartbeat_seconds = self._target_heartbeat_seconds
        self._main = threading.main_thread().ident
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._monitor, name="hang reporter", daemon=True)

    @property
    def seconds(self) -> float:
        """Time without progress after which a report is due; a new value applies from the next heartbeat.

        Raises:
            ValueError: a new value is not positive.
        """
        return self._seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        if not isinstance(seconds, (int, float)) or not seconds > 0:  # also rejects NaN
            raise ValueError(
                f"HangReporter: seconds={seconds!r}: must be a positive number. A report needs some time without "
                "progress, and heartbeats without a pause would overload the store. Pass a positive time."
            )
        self._seconds = seconds

    def note(self, section: str, step: int | None = None) -> None:
        """Record the position of this rank; every call counts as progress."""
        self._position = (section, step)
        self._notes += 1

    @contextmanager
    def section(self, name: str, step: int | None = None) -> Iterator[None]:
        """Record a section, by default in the current step, and restore the interrupted section at the end."""
        before = self._position
        self.note(name, before[1] if step is None else step)
        try:
            yield
        finally:
            self.note(*before)

    def on_train_step_start(self, context: StepContext) -> None:
        """Record the start of a step."""
        self.note("step", context.state.train_state.step + 1)

    def on_train_step_end(self, context: StepContext) -> None:
        """Record the end of the step."""
        self._note_after(context, "after step")
        if self._later_seconds is not None:
            self.seconds, self._later_seconds = self._later_seconds, None

    def on_eval_step_start(self, context: StepContext) -> None:
        """Record a batch of a validation."""
        self._note_after(context, "validation after step")

    def on_train_step_skipped(self, context: StepContext) -> None:
        """Record the end of a skipped step."""
        self._note_after(context, "after step")

    def on_eval_end(self, context: StepContext) -> None:
        """Record the end of the validation."""
        self._note_after(context, "after step")

    def on_test_step_start(self, context: StepContext) -> None:
        """Record a batch of a test."""
        self._note_after(context, "test after step")

    def on_checkpoint_start(self, context: CheckpointContext) -> None:
        """Record checkpoint work that holds the loop."""
        self._before_checkpoint = self._position
        is_save = context.checkpoint_work == "save"
        self._note_after(
            context, "checkpoint after step" if is_save else "waiting for background saves after step"
        )

    def on_checkpoint_end(self, context: object) -> None:
        """Restore the position that the checkpoint work interrupted."""
        self.note(*self._before_checkpoint)

    def _note_after(self, context: StepContext, section: str) -> None:
        self.note(section, context.state.train_state.step)

    def __enter__(self) -> "HangReporter":
        self._main = threading.get_ident()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join(MAX_HEARTBEAT_SECONDS)  # it may block in a store that does not respond
        if not self._thread.is_alive():
            self._release_claim()
            self._publish_status(
                self._status(0.0, exit_reason="finished" if error is None else type(error).__name__)
            )

    def _monitor(self) -> None:
        """Send heartbeats, and report when there is no progress for too long."""
        self._since = self._clock()
        is_stopped = False
        while not is_stopped:
            is_stopped = self._stopped.wait(self._heartbeat_seconds)
            self._beat()

    def _beat(self) -> None:
        """Send a heartbeat, and do the next part of a report if there is no progress for too long."""
        now = self._clock()
        if self._notes != self._seen:
            if self._has_reported:
                self._publish(f"rank {self._rank} {RESUMED} {now - self._since:.0f} s")
            self._release_claim()
            self._seen, self._since = self._notes, now
            self._is_due, self._has_reported, self._investigation = True, False, None
        self._publish_status(self._status(now - self._since))
        if self._stopped.is_set():
            return
        if self._is_due and now - self._since >= self.seconds:
            self._is_due, self._investigation = False, self._investigate()
        if self._investigation is not None:
            next(self._investigation, None)

    def _release_claim(self) -> None:
        with suppress(OSError, RuntimeError):  # as for the statuses
            self._statuses.claim.set_state("released")

    @property
    def _folder(self) -> Path | None:
        folder = self._configured_folder
        return folder if folder is not None and folder.is_dir() else None

    @property
    def _target_heartbeat_seconds(self) -> float:
        return min(self.seconds / HEARTBEATS_PER_REPORT, MAX_HEARTBEAT_SECONDS)

    def _status(self, seconds: float, *, exit_reason: str | None = None) -> RankStatus:
        section, step = self._position
        frames = innermost_frames(sys._current_frames().get(self._main or 0))
        return RankStatus(section=section, step=step, seconds=seconds, frames=frames, exit_reason=exit_reason)

    def _investigate(self) -> Iterator[None]:
        """Dump the stacks of this rank, and report on all ranks if this rank has to. Yields until the next heartbeat.

        Stacks go to a file at once, or without a folder to stderr after the report.
        """
        folder = self._folder
        if folder is not None:
            self._write_stacks(folder)
        if self._read_collectives is not None:  # each rank does so; the one that reports reads all of them
            self._statuses.write_collectives(self._read_collectives())
        statuses: dict[int, RankStatus | None] | None = {}
        try:
            statuses = (yield from self._read_all()) if (yield from self._claim_report()) else None
        except (OSError, RuntimeError) as error:  # the rank that serves the store may be the one that hangs
            why = str(error).partition("\n")[0]
            self._log_text(
                f"rank {self._rank}: the store does not respond, so other ranks are not visible: {why}"
            )
        if self._notes != self._seen or self._stopped.is_set():  # progress, or the end of the run, meanwhile
            return
        if statuses is not None:
            seconds = self._clock() - self._since
            statuses[self._rank] = self._status(seconds)
            stacks = None if folder is None else f"{folder}/hang_stack_*.txt"
            missing = [] if self._read_collectives is None else self._compare_collectives()
            self._publish(format_report(statuses, seconds=seconds, collectives=missing, stacks=stacks))
            self._has_reported = True
            with suppress(OSError, RuntimeError):  # as for the statuses
                self._statuses.claim.set_state("reported")
        if folder is None:
            self._write_stacks(None)

    def _claim_report(self) -> Generator[None, None, bool]:
        """Claim the report, and return whether this rank has to make it. Yields until the next heartbeat."""
        if self._rank != self._reporting_rank:
            for _ in range(RESPONSE_HEARTBEATS):  # the reporting rank comes first if it is stuck
                yield
        own = Claim(self._rank, "claimed")
        heartbeat, beats = None, 0
        claim = holder = self._statuses.claim.take()
        while claim != own:
            record = self._statuses.read([claim.rank]).get(claim.rank)
            if claim.rank != holder.rank:
                heartbeat, beats, holder = None, 0, claim
            responds = record is not None and heartbeat is not None and record.heartbeat != heartbeat
            if responds and claim.state == "reported":
                return False
            beats = 0 if responds else beats + 1
            heartbeat = None if record is None else record.heartbeat
            if claim.rank == self._rank or self._is_lost(record, beats):
                claim = self._statuses.claim.take_over(claim)
            else:
                yield
                claim = self._statuses.claim.take()
        return True

    def _is_lost(self, record: StatusRecord | None, beats: int) -> bool:
        """Return whether a rank can no longer report, after so many heartbeats of this rank without one of it."""
        if record is None or record.status.exit_reason is not None:
            return True
        longest = max(record.heartbeat_seconds, self._heartbeat_seconds)
        return beats * self._heartbeat_seconds > LOST_CLAIM_HEARTBEATS * longest

    def _compare_collectives(self) -> list[str]:
        """Return the lines on collectives that some ranks have not called."""
        try:
            in_store = self._statuses.read_collectives()
            return missing_collectives(
                {
                    **read_dump_files([rank for rank in self._statuses.ranks if rank not in in_store]),
                    **in_store,
                },
                ranks=self._statuses.ranks,
            )
        except (OSError, RuntimeError, ValueError) as error:
            return [f"cannot be compared: {str(error).partition(chr(10))[0]}"]

    def _read_all(self) -> Generator[None, None, dict[int, RankStatus | None]]:
        """Read every rank's heartbeat twice; a rank whose counter did not advance in between is unresponsive.

        Without a store no other rank is visible. Heartbeat intervals may differ between ranks: a rank in its first step
        still has the long interval. The wait between the two reads therefore covers several of the longest intervals.
        Yields until the next heartbeat, because other ranks read this one in the meantime.
        """
        first = self._statuses.read()
        own = self._heartbeat_seconds
        longest = max([own, *(note.heartbeat_seconds for note in first.values())])
        for _ in range(math.ceil(RESPONSE_HEARTBEATS * longest / own)):
            yield
        second = self._statuses.read()
        statuses: dict[int, RankStatus | None] = {}
        for rank in self._statuses.ranks:
            before, now = first.get(rank), second.get(rank)
            if now is None:
                statuses[rank] = None
                continue
            has_reported = before is None or now.heartbeat != before.heartbeat
            statuses[rank] = replace(
                now.status, unresponsive=now.status.exit_reason is None and not has_reported
            )
        return statuses

    def _publish_status(self, status: RankStatus) -> None:
        """Write the status of this rank to the store, with the seconds until the next heartbeat."""
        self._heartbeats += 1
        self._heartbeat_seconds = self._target_heartbeat_seconds
        record = StatusRecord(
            heartbeat=self._heartbeats, heartbeat_seconds=self._heartbeat_seconds, status=status
        )
        self._statuses.write(record)

    def _write_stacks(self, folder: Path | None) -> None:
        try:
            if folder is None:
                faulthandler.dump_traceback(sys.stderr)
            else:
                # Not to the shared file, because faulthandler writes line by line, between those of other ranks.
                with tempfile.TemporaryFile() as own:
                    faulthandler.dump_traceback(own)
                    own.seek(0)
                    stacks = own.read()
                head = f"rank {self._rank}, process {os.getpid()}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
                with (folder / stack_file_name()).open("ab", buffering=0) as file:
                    file.write(head.encode() + stacks + b"\n")
        except (OSError, AttributeError, ValueError) as error:
            # A full disk, or a stderr without a file behind it.
            self._log_text(f"rank {self._rank}: cannot write stacks: {error}")

    def _publish(self, text: str) -> None:
        self._log_text(text)
        folder = self._folder
        try:
            if folder is not None:
                with (folder / REPORT_FILE).open("a", encoding="utf-8") as file:
                    file.write(f"{text}\n")
        except OSError as error:
            self._log_text(f"rank {self._rank}: cannot write {REPORT_FILE}: {error}")
