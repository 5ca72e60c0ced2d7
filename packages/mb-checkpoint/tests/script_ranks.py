"""Ranks of a script, forked from a process that has imported torch, which takes a fresh one five seconds of CPU time.

Each rank has the environment that `torchrun` would give it. Nothing supervises them: a kill is the end of a rank.
"""

import multiprocessing
import os
import re
import runpy
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

TIMEOUT_SECONDS = 120.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.tensor", "torch._dynamo"]
)


class ScriptRanks:
    """Running ranks of a script."""

    def __init__(self, script: Path, *arguments: object, ranks: int = 2) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        world["OMP_NUM_THREADS"] = "1"
        folder = Path(mkdtemp(prefix="ranks-"))
        self._outputs = [folder / f"{rank}.txt" for rank in range(ranks)]
        words = [str(each) for each in arguments]
        self._processes = []
        for rank, output in enumerate(self._outputs):
            output.touch()
            environment = {**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            task = (str(script), words, environment, str(output))
            self._processes.append(FORKS.Process(target=run_script, args=task, daemon=False))
            self._processes[-1].start()

    def kill(self, *, after: str) -> str:
        """Kill all ranks when one has printed a pattern; return what they had printed."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline and any(process.is_alive() for process in self._processes):
            if re.search(after, self._text(), re.MULTILINE):
                break
            time.sleep(0.005)
        for process in self._processes:
            process.kill()
        return self.output()

    def output(self) -> str:
        """Wait for the ranks to end, and return what they printed, rank by rank."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        if any(process.is_alive() for process in self._processes):
            for process in self._processes:
                process.kill()
            raise TimeoutError(self._text())
        return self._text()

    def _text(self) -> str:
        return "".join(output.read_text() for output in self._outputs)


def run_script(script: str, arguments: list[str], environment: Mapping[str, str], output: str) -> None:
    """Run a script as the main program of this process, with its output in a file."""
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
