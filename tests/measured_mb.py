"""Commands of `mb` in forks of a process that has torch and Megatron Core in memory, with their CPU time and memory.

The process itself runs nothing and has no threads: a fork of one that does may never take a lock again.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

HANGS = 60
"""Seconds after which a command is killed."""
PRELOADED = (
    "mb_trainer.cli.app",
    "mb_host",
    "mb_checkpoint.cli.commands",
    "mb_metrics.cli.report",
    "mb_data.cli.at",
)
WITH_MEGATRON = ("mb_trainer.sampling", "mb_trainer.hugging_face")


class MeasuredCommands:
    """Runs commands; use as a context manager."""

    def __enter__(self) -> "MeasuredCommands":
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run(self, words: list[str], directory: Path) -> dict[str, Any]:
        """Return exit code, traceback or an empty text, last lines, CPU seconds and MiB of a command."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps({"words": words, "directory": str(directory)}), file=stdin, flush=True)
        found: dict[str, Any] = json.loads(stdout.readline())
        return found


def serve() -> None:
    """Fork a process for each line of stdin."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import_module("mb_host").install()
    for name in (*PRELOADED, *WITH_MEGATRON):
        import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(in_a_fork(**request)), file=output, flush=True)


def in_a_fork(words: list[str], directory: str) -> dict[str, Any]:
    """Run one command, and return what is known about it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.chdir(directory)
        signal.alarm(HANGS)
        os.write(writer, json.dumps(measured(words)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        content = stream.read()
    _, status = os.waitpid(child, 0)
    ended = {"code": -status, "traceback": f"ended with status {status}", "lines": [], "seconds": 0, "mib": 0}
    return json.loads(content) if content else ended


def measured(words: list[str]) -> dict[str, Any]:
    """Run one command in this process."""
    app, runner = import_module("mb_trainer.cli.app").app, import_module("typer.testing").CliRunner()
    before = resource.getrusage(resource.RUSAGE_SELF)
    done = runner.invoke(app, words)
    after = resource.getrusage(resource.RUSAGE_SELF)
    text = done.output + done.stderr
    found = {
        "code": done.exit_code,
        "traceback": text[-300:] if "Traceback" in text else "",
        "lines": [line[:300] for line in text.strip().splitlines()[-2:]],
        "seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "mib": (after.ru_maxrss - before.ru_maxrss) / 1024,
    }
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        found["traceback"] = repr(done.exception)[:300]
        trace, places = done.exc_info[2], []
        while trace is not None:
            places.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
            trace = trace.tb_next
        found["lines"] = places[-6:]
    return found


if __name__ == "__main__":
    serve()
