"""Rows that prove a resume on the GPU bit for bit, and rows on saves."""

import json
import shutil
from itertools import pairwise
from statistics import median
from typing import Any

from first_run.machine import Machine
from first_run.row import (
    BF16,
    ENGINE,
    LAYER_GRAPHS,
    LOCAL,
    SHARDED,
    WHOLE_GRAPH,
    WITHOUT_TENSORBOARD,
    Row,
    RowFailed,
    mb,
    out_of,
)

DETERMINISTIC = ("model.deterministic_mode=true", "model.cross_entropy_loss_fusion=false")
DROPOUT = ("model.hidden_dropout=0.1",)
PRECISION_AWARE = ("optimizer.use_precision_aware_optimizer=true",)
FP8_DELAYED = "mixed_precision=bf16_with_fp8_delayed_scaling_mixed"
HIDDEN_PACKAGES = ("transformer_engine", "transformer_engine_torch", "apex", "amp_C")
"""Packages that a row without them cannot import."""


def resume_rows() -> list[Row]:
    """Return the rows of resumes and saves, worst risk first."""
    return [
        stall_row(),
        resume_row("resume.transformer_engine_sharded", *BF16, *SHARDED, *DROPOUT, needs=ENGINE),
        resume_row("resume.local_distributed_optimizer", *LOCAL, *SHARDED, *DROPOUT),
        resume_row("resume.precision_aware", *BF16, *SHARDED, *PRECISION_AWARE, *DROPOUT, needs=ENGINE),
        resume_row("resume.fp8_delayed", *SHARDED, FP8_DELAYED, needs=ENGINE),
        resume_row("graphs.layers_saved_and_resumed", *BF16, *LAYER_GRAPHS, needs=ENGINE),
        resume_row("graphs.whole_step_saved_and_resumed", *BF16, *WHOLE_GRAPH, needs=ENGINE),
        resume_row("resume.asynchronous", *BF16, *SHARDED, "checkpoint.async_save=true", needs=ENGINE),
        resume_row("resume.local", *LOCAL, *DROPOUT),
        resume_row("resume.transformer_engine", *BF16, *DROPOUT, needs=ENGINE),
        resume_row("resume.without_transformer_engine", *LOCAL, *SHARDED, *DROPOUT, without=HIDDEN_PACKAGES),
    ]


def resume_row(row: str, *settings: str, **fields: Any) -> Row:
    """Return a row that runs uninterrupted, and interrupted at a checkpoint, and compares every step."""
    words = (*DETERMINISTIC, *settings)
    return Row(
        id=row,
        limit_seconds=150,
        command=lambda machine: mb("verify-resume", *machine.words(words), "--steps", "8", "--cut", "4"),
        environment={"NCCL_ALGO": "Ring"},
        settings=("gpt_tiny", *words),
        **{"needs": ("gpu",), **fields},
    )


STALL = "save.asynchronous_stall"
SAVES = (10, 20, 30)
STALL_SETTINGS = (
    "train.train_iters=35",
    "train.global_batch_size=32",
    "checkpoint.async_save=true",
    "checkpoint.save_interval=10",
    "checkpoint.most_recent_k=1",
    "dataset.num_workers=2",
    "scheduler.lr_warmup_iters=2",
    "validation.eval_interval=null",
    "logger.log_interval=1",
    WITHOUT_TENSORBOARD,
)


def stall_row() -> Row:
    """Return a row that measures how long a save in the background holds the loop, in a model of 355 M parameters."""
    return Row(
        id=STALL,
        limit_seconds=240,
        command=lambda machine: mb("pretrain", "gpt_350m", *STALL_SETTINGS, *out_of(machine, STALL)),
        check=stalls,
        settings=("gpt_350m", *STALL_SETTINGS),
        needs=ENGINE,
        alone=True,
    )


def stalls(machine: Machine) -> dict[str, Any]:
    """Return the seconds by which the step after each save is longer than the median, and delete the checkpoints.

    Raises:
        RowFailed: A save is missing, or no step came after it.
    """
    run = machine.trained(STALL)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = {row["step"]: row["time"] for row in rows if "lm loss" in row}
    lasted = {after: times[after] - times[before] for before, after in pairwise(sorted(times))}
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    if not {step + 1 for step in SAVES} <= lasted.keys():
        raise RowFailed(f"there are no steps after the saves {SAVES}: {sorted(lasted)}")
    usual = median(lasted.values())
    return {
        "median_step_seconds": round(usual, 4),
        "stall_seconds": {step: round(lasted[step + 1] - usual, 4) for step in SAVES},
    }
