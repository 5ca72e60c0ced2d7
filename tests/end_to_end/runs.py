"""Start runs of the trainer, in this process or as a user would, and read what they leave behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

from mb_loop import Callback, TrainOutcome
from mb_trainer import pretrain
from mb_trainer.reading import read_request


def train_here(
    words: list[str], out: Path, *, callbacks: tuple[Callback, ...] = (), **options
) -> TrainOutcome:
    """Train in this process, without a launcher."""
    request = read_request(words)
    return pretrain(
        request.config,
        name=request.name,
        out=out,
        provenance=request.provenance,
        callbacks=callbacks,
        environment={},
        **options,
    )


def start_mb(*words: str) -> subprocess.Popen[str]:
    """Start `mb` in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mb_trainer", *words]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


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
