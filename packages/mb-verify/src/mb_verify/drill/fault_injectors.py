"""Injection of each kind of fault into a running command. Linux; the standard library only."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mb_verify.drill.fault_callback import FaultRequest
from mb_verify.drill.plan import IN_PROCESS, FaultKind, PlannedFault
from mb_verify.drill.progress import StartProgress
from mb_verify.drill.start_process import StartedCommand

KILLS_ALL: frozenset[FaultKind] = frozenset({"stale_lock", "port", "damaged"})
"""Faults that begin with SIGKILL to all processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrilledRun:
    """Folders of the run that a fault is injected into."""

    folder: Path
    checkpoints: Path
    record: Path

    @property
    def mark(self) -> Path:
        """File that a callback writes when it injects its fault."""
        return self.record / "fault"


def reason_to_skip(kind: FaultKind, *, processes: int, folder: Path) -> str | None:
    """Return the reason why a kind of fault cannot be injected here; None if it can."""
    if kind == "port" and processes == 1:
        return "a single process opens no port"
    if kind in ("full_disk", "read_only"):
        return why_not_mounted(folder)
    return None


def why_not_mounted(folder: Path) -> str | None:
    """Return the reason why nothing can be mounted below a folder; None if a small tmpfs can be."""
    probe = folder / "mount-probe"
    probe.mkdir(parents=True, exist_ok=True)
    try:
        with mounted(probe, "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
            return None
    except OSError as error:
        return f"mounting a file system needs root: {error}"
    finally:
        probe.rmdir()


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    """Mount a file system on a folder, and unmount it at the end.

    Raises:
        OSError: `mount` is missing or rejects the request.
    """
    mount(*arguments, str(folder))
    try:
        yield
    finally:
        # processes that have just been killed may hold it for a moment
        for _ in range(50):
            if subprocess.run(["umount", str(folder)], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
        else:
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


def mount(*arguments: str) -> None:
    """Run `mount`.

    Raises:
        OSError: it is missing or rejects the request.
    """
    ended = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise OSError(ended.stderr.strip() or f"mount ended with exit code {ended.returncode}")


class FaultInjector:
    """Injects one fault, once: prepares the run, acts at the moment, and removes the cause after the start has ended.

    A context manager: resources such as mounts and ports are released at its end.

    Args:
        fault: what is injected, and when.
        run: folders of the run.
        step_seconds: seconds of the fault's step in the undisturbed run, with a save after it.
    """

    def __init__(self, fault: PlannedFault, run: DrilledRun, *, step_seconds: float) -> None:
        self._fault = fault
        self._run = run
        self._step_seconds = step_seconds
        self._due: float | None = None
        self._damaged = False
        self._cause = ExitStack()
        self._resources = ExitStack()
        self.injected_at: float | None = None
        """Time of the fault, in seconds since the epoch; None: not yet."""

    def __enter__(self) -> "FaultInjector":
        self._run.record.mkdir(parents=True)
        if self._fault.kind == "full_disk":
            self._run.folder.mkdir(parents=True)
            self._resources.enter_context(mounted(self._run.folder, "-t", "tmpfs", "tmpfs"))
        return self

    def __exit__(self, *_: object) -> None:
        self._cause.close()
        self._resources.close()

    def environment(self, start: int) -> Mapping[str, str]:
        """Return variables for a start of the run: a request for the callback, or the port to use."""
        if start == 0 and self._fault.kind in IN_PROCESS:
            return FaultRequest(
                kind=self._fault.kind,
                rank=self._fault.rank,
                step=self._fault.step,
                seconds=max(0.5, self._step_seconds),
                mark=str(self._run.mark),
            ).variables()
        if start == 1 and self._fault.kind == "port" and self.injected_at is not None:
            return {"MASTER_PORT": str(self._cause.enter_context(taken_port()))}
        return {}

    def poll(self, started: StartedCommand, progress: StartProgress, *, processes: int) -> None:
        """Inject the fault if its moment has come."""
        if self.injected_at is not None:
            return
        if self._fault.kind in IN_PROCESS:
            if self._run.mark.is_file():
                self.injected_at = float(self._run.mark.read_text(encoding="utf-8") or time.time())
            return
        if self._due is None and self._is_reached(progress, processes=processes):
            self._due = time.monotonic() + self._fault.fraction * self._step_seconds
        if self._due is not None and time.monotonic() >= self._due:
            self.injected_at = time.time()
            self._inject(started, progress)

    def after_start(self) -> None:
        """Remove a cause that lasts until the start has ended; change the newest checkpoint if that is the fault."""
        self._cause.close()
        if self._fault.kind == "damaged" and self.injected_at is not None and not self._damaged:
            self._damaged = True
            newest = newest_checkpoint(self._run.checkpoints)
            if newest is not None:
                change_byte(newest)

    def _is_reached(self, progress: StartProgress, *, processes: int) -> bool:
        if len(progress.processes) < processes or (progress.last_step or 0) < self._fault.step - 1:
            return False
        # an older checkpoint is left to resume from
        return self._fault.kind != "damaged" or len(checkpoint_steps(self._run.checkpoints)) > 1

    def _inject(self, started: StartedCommand, progress: StartProgress) -> None:
        kind, run = self._fault.kind, self._run
        if kind in KILLS_ALL:
            started.kill()
        elif kind == "stop":
            started.send_signal(signal.SIGTERM)
        elif kind in ("kill", "hang"):
            number = signal.SIGKILL if kind == "kill" else signal.SIGSTOP
            with suppress(ProcessLookupError):
                os.kill(progress.processes[self._fault.rank], number)
        elif kind == "deleted":
            delete(run.checkpoints)
        elif kind == "full_disk":
            self._cause.enter_context(filled(run.folder))
        elif kind == "read_only":
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            self._cause.enter_context(mounted(run.checkpoints, "--bind", str(run.checkpoints)))
            mount("-o", "remount,bind,ro", str(run.checkpoints))


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Shrink the tmpfs of a folder to what it holds, and restore its size at the end.

    Raises:
        OSError: it cannot be shrunk.
    """
    filesystem = os.statvfs(folder)
    for attempt in range(20):
        now = os.statvfs(folder)
        used = (now.f_blocks - now.f_bfree) * now.f_frsize
        try:
            mount("-o", f"remount,size={max(used, 1)}", str(folder))
            break
        except OSError:
            if attempt == 19:
                raise
            time.sleep(0.01)  # the run has written more in between
    try:
        yield
    finally:
        mount("-o", f"remount,size={filesystem.f_blocks * filesystem.f_frsize}", str(folder))


@contextmanager
def taken_port() -> Iterator[int]:
    """Listen on a free port of the loopback interface while the context is open."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def delete(folder: Path) -> None:
    """Delete a folder at once, although a process may be writing to it."""
    moved = folder.with_name(f"{folder.name}.deleted")
    with suppress(FileNotFoundError):
        folder.rename(moved)
        shutil.rmtree(moved, ignore_errors=True)


def checkpoint_steps(folder: Path) -> dict[Path, int]:
    """Return the entries of a folder with the number that ends their names; hidden ones are unfinished."""
    if not folder.is_dir():
        return {}
    numbers_of = {path: re.findall(r"\d+", path.name) for path in folder.iterdir() if path.name[0] != "."}
    return {path: int(numbers[-1]) for path, numbers in numbers_of.items() if numbers}


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the entry whose name contains the highest number; None: there is none."""
    steps = checkpoint_steps(folder)
    return max(steps, key=lambda path: steps[path], default=None)


def change_byte(checkpoint: Path) -> None:
    """Change a byte in the middle of the largest file of a checkpoint, as a faulty disk would."""
    files = [path for path in (checkpoint, *checkpoint.rglob("*")) if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-len(byte), os.SEEK_CUR)
        file.write(bytes(255 - value for value in byte))
