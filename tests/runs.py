"""Start runs of the trainer, in this process or as a user would, and read their output files."""

import atexit
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from preloaded_mb import PreloadedProcess, inherited, server
from typer.testing import CliRunner

from mb_host import RankPool
from mb_loop import Callback, TrainOutcome
from mb_trainer import pretrain
from mb_trainer.cli.app import app
from mb_trainer.local_launch import PRELOADED
from mb_trainer.requests import read_request

TINY_MIMO = (
    "mimo_tiny",
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "model.vision_num_layers=1",
    "model.vision_hidden_size=32",
    "model.hidden_dropout=0.1",
    "validation.eval_iters=2",
    "scheduler.lr_warmup_iters=2",
    "checkpoint.save_interval=null",
)
"""A vision-language model with one layer in each module."""


def train_here(
    words: list[str], out: Path, *, callbacks: tuple[Callback, ...] = (), **options
) -> TrainOutcome:
    """Train in this process, without a launcher; a bare machine with a GPU may lack TensorBoard."""
    bare = [] if find_spec("tensorboard") else ["logger.tensorboard_dir=null"]
    request = read_request([*words, *bare])
    return pretrain(
        request.config,
        name=request.name,
        out=out,
        provenance=request.provenance,
        callbacks=callbacks,
        environment={},
        **options,
    )


def rank_pool(world_size: int, *, timeout_seconds: float = 300.0) -> RankPool:
    """Return a pool of ranks forked with torch and Megatron Core in memory.

    Their fork server imports what the first pool of this process names, so all pools of these tests are made here.
    """
    return RankPool(world_size, timeout_seconds=timeout_seconds, imports=PRELOADED)


def run_ranks(
    function: Callable[..., Any], world_size: int, *arguments: object, timeout_seconds: float = 300.0
) -> list[Any]:
    """Run a function on new ranks; return their results."""
    with rank_pool(world_size, timeout_seconds=timeout_seconds) as pool:
        return pool.run(function, *arguments)


class FullDisk(Callback):
    """Context manager, and callback of a run whose saves fail: no file of the process grows beyond 32 KiB.

    Args:
        until: Step after which there is room again; None: the end of the block.
    """

    def __init__(self, *, until: int | None = None) -> None:
        self.until = until

    def __enter__(self) -> "FullDisk":
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        return self

    def on_train_start(self, context) -> None:
        """Limit the size of files."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, self.before[1]))

    def on_train_step_end(self, context) -> None:
        """Remove the limit after the step."""
        if context.state.train_state.step == self.until:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.before)

    def __exit__(self, *_error) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def start_mb(
    *words: str, environment: Mapping[str, str] | None = None
) -> PreloadedProcess | subprocess.Popen[str]:
    """Start `mb` in a separate process; one that a failed test leaves running ends with the test process.

    The process is a fork with torch and Megatron Core in memory, unless its environment changes what they import.
    """
    variables = {**inherited(), **(environment or {})}
    if server().can_start(variables):
        return server().start(words, environment=variables)
    return start_fresh_mb(*words, environment=environment)


def start_fresh_mb(*words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `mb` in a new interpreter, as a user does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mb_trainer", *words],
        env={**inherited(), **(environment or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    atexit.register(process.terminate)
    return process


def read_until(process: PreloadedProcess | subprocess.Popen[str], text: str) -> str:
    """Return the output of a process up to a line that contains the text, or to its end."""
    printed = ""
    for line in process.stdout:
        printed += line
        if text in line:
            break
    return printed


def mb(*words: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `mb` in a separate process and wait for it."""
    process = start_mb(*words, environment=environment)
    try:
        printed, complaints = process.communicate(timeout=900)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, printed, complaints)


def mb_here(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `mb` in this process, where torch and Megatron are imported already."""
    answer = CliRunner().invoke(app, list(words))
    return subprocess.CompletedProcess(list(words), answer.exit_code, answer.stdout, answer.stderr)


def wait_for_steps(out: Path, number: int, *, seconds: float = 300) -> None:
    """Wait until a run has recorded so many steps."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (out / "metrics.jsonl").exists() and len(metrics(out)) >= number:
            return
        time.sleep(0.02)
    raise TimeoutError(f"{out}: fewer than {number} steps in {seconds} s")


def metrics(out: Path) -> list[dict]:
    """Read metrics.jsonl."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(out: Path) -> dict[int, float]:
    """Return the training loss of every step."""
    return {row["step"]: row["lm loss"] for row in metrics(out) if "lm loss" in row}


def events(out: Path) -> list[tuple[str, int]]:
    """Return the events and their steps, in order."""
    rows = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [(row["event"], row["step"]) for row in rows]


def exit_code_of(*words: object) -> int:
    """Run a command of `mb` in this process, and return its exit code."""
    try:
        return typer.main.get_command(app)(args=[str(word) for word in words], standalone_mode=False) or 0
    except typer.Exit as ended:
        return ended.exit_code
