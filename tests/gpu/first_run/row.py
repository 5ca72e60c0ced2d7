"""One check of the table, and the settings that several checks have in common."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from first_run.machine import Machine

SCRIPT = Path(__file__).resolve().parents[1] / "first_run.py"
STEPS = 20
"""Steps of a run of the recipe gpt_tiny."""
BF16 = ("mixed_precision=bf16_mixed",)
LOCAL = ("model.transformer_impl=local",)
SHARDED = ("ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=true")
LAYER_GRAPHS = ("model.cuda_graph_impl=transformer_engine", "model.cuda_graph_warmup_steps=3")
WHOLE_GRAPH = (
    "model.cuda_graph_impl=full_iteration",
    "model.cuda_graph_warmup_steps=3",
)
WITHOUT_TENSORBOARD = "logger.tensorboard_dir=null"
"""Setting of each run, because a bare machine may lack TensorBoard."""
ENGINE = ("gpu", "transformer_engine")
"""Needs of a row with layers of Transformer Engine."""


class RowFailed(Exception):
    """A check of a row does not hold; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check: a process, its time limit, and what must hold when it has ended."""

    id: str
    limit_seconds: float
    command: Callable[[Machine], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Machine], dict[str, Any]] | None = None
    """Return values for the table, or raise RowFailed."""
    needs: tuple[str, ...] = ()
    """"gpu", or modules that must be installed."""
    settings: tuple[str, ...] | None = None
    """Recipe and overrides, for `mb check` in a dry run."""
    without: tuple[str, ...] = ()
    """Packages that cannot be imported in this row."""
    after: tuple[str, ...] = ()
    """Rows whose results this one reads: it starts when they have ended."""
    alone: bool = False
    """Whether no other row may run at the same time, because the row measures speed."""


def mb(*arguments: str) -> list[str]:
    """Return the command line of `mb`."""
    return [sys.executable, "-W", "ignore", "-m", "mb_trainer", *arguments]


def in_a_child(name: str) -> Callable[[Machine], Sequence[str]]:
    """Return a command that runs a function of `first_run.children.CHILDREN`."""
    return lambda machine: [sys.executable, "-W", "ignore", str(SCRIPT), "--child", name]


def out_of(machine: Machine, row: str) -> list[str]:
    """Return the option that names the run folder of a row."""
    return ["--out", str(machine.trained(row))]
