"""Faults at the n-th file operation below a folder: kill, torn write, full disk, permission error, read error.

Wraps Python's functions that change and read files, in this process and in processes that it forks afterwards.
"""

import builtins
import errno
import io
import os
import signal
from dataclasses import dataclass

KILLS = ("kill", "torn")
"""The training process dies, at an operation or in the middle of a write; its writer with it."""
WRITER_ALONE = {"crash": signal.SIGKILL, "stop": signal.SIGSTOP}
"""Signals that only the writer process receives."""
OPERATIONS = {
    "open-read",
    "read",
    "open-write",
    "write",
    "close",
    "fsync",
    "mkdir",
    "rename",
    "unlink",
    "rmdir",
}
ERRORS = {"full": errno.ENOSPC, "denied": errno.EACCES, "io": errno.EIO}
APPLIES = {
    "kill": OPERATIONS,
    "crash": OPERATIONS,  # the writer process alone dies
    "stop": OPERATIONS,  # it is stopped, as by a debugger, and never continues
    "torn": {"write"},
    "full": {"open-write", "write", "close", "fsync", "mkdir", "rename"},
    "denied": {"open-read", "open-write", "mkdir", "rename", "unlink", "rmdir"},
    "io": {"open-read", "read", "write", "close", "fsync"},
}


@dataclass
class Plan:
    """What goes wrong where; `number` None only records the operations."""

    root: str
    log: str
    """File outside the root: each operation is appended, its name and its path below the root in a line."""
    process: str = "main"
    number: int | None = None
    kind: str = "kill"


class Points:
    """Counts the operations of this process."""

    def __init__(self, plan, process, victim):
        self.plan, self.process, self.victim, self.count = plan, process, victim, 0
        self.log = _open(f"{plan.log}.{process}", "a")
        self.on = True

    def reach(self, name, path, undo=None):
        """Note an operation; make it fail if it is the one."""
        if not self.on or not str(path).startswith(self.plan.root):
            return
        number, self.count = self.count, self.count + 1
        self.log.write(f"{name} {str(path).removeprefix(self.plan.root)}\n")
        self.log.flush()
        plan = self.plan
        if plan.number != number or plan.process != self.process or name not in APPLIES[plan.kind]:
            return
        if plan.kind in KILLS:
            if undo is not None and plan.kind == "torn":
                undo()
            for pid in dict.fromkeys((self.victim, os.getpid())):
                os.kill(pid, signal.SIGKILL)
            signal.pause()
        if plan.kind in WRITER_ALONE:
            os.kill(os.getpid(), WRITER_ALONE[plan.kind])
            return  # only after a stop, and if it is continued
        raise OSError(ERRORS[plan.kind], os.strerror(ERRORS[plan.kind]), str(path))


class WatchedFile:
    """A file whose reads and writes are operations."""

    def __init__(self, stream, path, points, writes):
        self._stream, self._path, self._points, self._writes = stream, path, points, writes

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def __iter__(self):
        return iter(self._stream)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def write(self, content):
        def half():
            self._stream.write(content[: len(content) // 2])
            self._stream.flush()

        self._points().reach("write", self._path, half)
        return self._stream.write(content)

    def read(self, *size):
        self._points().reach("read", self._path)
        return self._stream.read(*size)

    def close(self):
        try:
            if self._writes and not self._stream.closed:
                self._points().reach("close", self._path)
        finally:
            self._stream.close()


_open = builtins.open
CURRENT = []


def current():
    return CURRENT[0]


def install(plan):
    """Watch this process as "main" and every process forked from now on as "worker"."""
    parent = os.getpid()
    CURRENT[:] = [Points(plan, "main", parent)]
    os.register_at_fork(after_in_child=lambda: CURRENT.__setitem__(0, Points(plan, "worker", parent)))

    def watched_open(path, mode="r", *args, **kwargs):
        writes = any(letter in mode for letter in "wxa+")
        place = os.fspath(path) if not isinstance(path, int) else ""
        current().reach("open-write" if writes else "open-read", place)
        stream = _open(path, mode, *args, **kwargs)
        return WatchedFile(stream, place, current, writes) if str(place).startswith(plan.root) else stream

    builtins.open = io.open = watched_open
    for name, label in {"mkdir": "mkdir", "rename": "rename", "replace": "rename", "rmdir": "rmdir"}.items():
        _wrap(name, label)
    _wrap("unlink", "unlink")
    _wrap("remove", "unlink")
    fsync = os.fsync

    def watched_fsync(descriptor):
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        current().reach("fsync", _path_of(number))
        return fsync(descriptor)

    os.fsync = watched_fsync


def _wrap(name, label):
    real = getattr(os, name)

    def watched(path, *args, dir_fd=None, **kwargs):
        place = os.fspath(path)
        if dir_fd is not None:
            place = f"{_path_of(dir_fd)}/{place}"
            kwargs["dir_fd"] = dir_fd
        current().reach(label, place)
        return real(path, *args, **kwargs)

    setattr(os, name, watched)


def _path_of(descriptor):
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  # pathlib is what is being watched


def matrices(folder, wanted):
    """Go through the points of some matrices. For a process that has imported Megatron."""
    import fault_driver

    return fault_driver.summary(folder, wanted)
