"""Processes of `mb` that start with torch and Megatron Core already imported.

Importing both takes a process 10 to 15 seconds of CPU time, and the tests start `mb` more than a hundred times. A
server process imports the modules once and forks a process per command, each with its own arguments, environment,
working directory and output, as a fresh interpreter would have them. Variables that the imports read cannot differ.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NoReturn

READ_BY_IMPORTS = ("PYTHON", "OMP_", "MKL_", "TORCH", "CUDA_", "NVTE_", "LD_", "MB_")
"""Prefixes of variables that the imports read: a process with others than the server's needs a fresh interpreter."""
NUMBER_OF_DESCRIPTORS = 3
"""Descriptors sent with a request: standard output, standard error, exit status."""
MAX_REQUEST_BYTES = 1 << 20


class PreloadedProcess:
    """Process forked by the server, with the interface of `subprocess.Popen` that the tests use."""

    def __init__(self, arguments: Sequence[str], *, stdout: int, stderr: int, status: int) -> None:
        self.args = list(arguments)
        self.stdout = os.fdopen(stdout)
        self.stderr = os.fdopen(stderr)
        self.returncode: int | None = None
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())
        atexit.register(self.terminate)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process is running."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(self._status.readline() or -signal.SIGKILL)
            self._status.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process and return its exit status."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            select.select([self._status], [], [], 0.1)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both outputs to their ends, and wait for the process."""
        texts = {}
        readers = [
            Thread(target=lambda name=name: texts.update({name: getattr(self, name).read()}), daemon=True)
            for name in ("stdout", "stderr")
        ]
        deadline = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if deadline is None else max(1.0, deadline - time.monotonic()))
        return texts["stdout"], texts["stderr"]

    def send_signal(self, number: int) -> None:
        """Send a signal if the process is running."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM if the process is running."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL if the process is running."""
        self.send_signal(signal.SIGKILL)


class PreloadedServer:
    """Server process that forks processes of `mb`; ends with the test process."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = inherited()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=self._environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(self._process.kill)

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Return whether the imports would be the same in a fresh interpreter with this environment."""
        names = {name for name in {*environment, *self._environment} if name.startswith(READ_BY_IMPORTS)}
        return all(environment.get(name) == self._environment.get(name) for name in names)

    def start(self, arguments: Sequence[str], *, environment: Mapping[str, str]) -> PreloadedProcess:
        """Start `mb ARGUMENTS` in the current directory."""
        pipes = [os.pipe() for _ in range(NUMBER_OF_DESCRIPTORS)]
        request = {"arguments": list(arguments), "environment": dict(environment), "folder": str(Path.cwd())}
        socket.send_fds(self._control, [json.dumps(request).encode()], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        stdout, stderr, status = (read for read, _ in pipes)
        return PreloadedProcess(["mb", *arguments], stdout=stdout, stderr=stderr, status=status)


def inherited() -> dict[str, str]:
    """Return the environment of the processes that the tests start."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def serve(descriptor: int) -> None:
    """Import the modules, then fork a process per request until the test process closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from mb_trainer.local_launch import preload

    preload()
    gc.freeze()
    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended supervisors are reaped by the kernel
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, NUMBER_OF_DESCRIPTORS)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            supervise(json.loads(data), descriptors)
        for each in descriptors:
            os.close(each)


def supervise(request: Mapping, descriptors: Sequence[int]) -> NoReturn:
    """Fork the process, write its process ID and its exit status, and leave."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *outputs, status = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(status)
        run(request, outputs)
    for each in outputs:
        os.close(each)
    os.write(status, f"{pid}\n".encode())
    _, state = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(state)}\n".encode())
    os._exit(0)


def run(request: Mapping, outputs: Sequence[int]) -> NoReturn:
    """Run `mb` as a fresh interpreter would, and leave with its exit status."""
    from mb_launch import ForkedProgram
    from mb_launch.ranks.forked_ranks import run_forked_rank
    from mb_trainer.local_launch import preload, run_mb

    for target, source in zip((1, 2), outputs, strict=True):
        os.dup2(source, target)
        os.close(source)
    sys.stdout, sys.stderr = (open(target, "w", closefd=False) for target in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    code: object = 0
    interrupted = False
    try:
        run_forked_rank(ForkedProgram(argv=("mb", *request["arguments"]), main=run_mb, preload=preload))
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        interrupted = True
    except BaseException:  # noqa: BLE001 - an interpreter prints any error, and ends with 1
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(int(code or 0))  # type: ignore[call-overload]


_server: PreloadedServer | None = None


def server() -> PreloadedServer:
    """Return the server of this test process, started on first use."""
    global _server
    if _server is None:
        _server = PreloadedServer()
    return _server


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of the tests, which an installed `mb` does not have
    serve(int(sys.argv[1]))
