"""Rows that train gpt_tiny on the GPU, and compare the losses with those of the CPU."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from first_run.machine import NO_GPU, Machine
from first_run.row import ENGINE, STEPS, WITHOUT_TENSORBOARD, Row, RowFailed, in_a_child, mb, out_of

TWO_PERCENT = 0.02
SAME_WEIGHTS = ("model.use_cpu_initialization=true",)
TRAINED = (
    f"train.train_iters={STEPS}",
    "validation.eval_interval=null",
    "checkpoint.save_interval=10",
    "logger.log_interval=5",
    WITHOUT_TENSORBOARD,
)


def training_rows() -> list[Row]:
    """Return the first rows: the machine, and 20 steps on the CPU and on the GPU."""
    loose = {"limit_seconds": 120, "needs": ("gpu",), "after": ("train.cpu",)}
    return [
        Row(
            id="smoke",
            limit_seconds=60,
            command=in_a_child("smoke"),
            check=lambda machine: need_gpu(machine, values_of(machine, "smoke")),
        ),
        Row(
            id="transformer_engine",
            limit_seconds=60,
            command=in_a_child("transformer_engine"),
            check=lambda machine: values_of(machine, "transformer_engine"),
            needs=ENGINE,
        ),
        Row(
            id="doctor",
            limit_seconds=90,
            command=in_a_child("doctor"),
            check=lambda machine: without_problems(machine, values_of(machine, "doctor")),
        ),
        pretrain_row(
            "train.cpu",
            *SAME_WEIGHTS,
            limit_seconds=120,
            environment={"CUDA_VISIBLE_DEVICES": ""},
            check=lambda machine: compared(machine, "train.cpu"),
        ),
        pretrain_row("train.gpu", check=lambda machine: compared(machine, "train.gpu", last=0.1), **loose),
        pretrain_row(
            "train.gpu_same_weights",
            *SAME_WEIGHTS,
            check=lambda machine: compared(machine, "train.gpu_same_weights", every=TWO_PERCENT),
            **loose,
        ),
    ]


def pretrain_row(row: str, *settings: str, **fields: Any) -> Row:
    """Return a row that trains 20 steps of gpt_tiny."""
    return Row(
        id=row,
        command=lambda machine: mb("pretrain", *machine.words((*TRAINED, *settings)), *out_of(machine, row)),
        settings=("gpt_tiny", *TRAINED, *settings),
        **fields,
    )


def need_gpu(machine: Machine, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the first row, which must list a GPU unless it is hidden."""
    if machine.gpu and not values["devices"]:
        raise RowFailed(f"{NO_GPU}: torch {values['versions'].get('torch')} sees none")
    return values


def values_of(machine: Machine, child: str) -> dict[str, Any]:
    """Return what a child has left."""
    values: dict[str, Any] = json.loads((machine.out / f"{child}.json").read_text())
    return values


def losses_of(run: Path) -> dict[int, float]:
    """Return the losses of a run by step."""
    rows_ = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["lm loss"] for row in rows_ if "lm loss" in row}


def compared(
    machine: Machine, row: str, *, every: float | None = None, last: float | None = None
) -> dict[str, Any]:
    """Return the losses of a run and those of the CPU, with the largest relative difference.

    Args:
        machine: Has the run folders.
        row: Of the run.
        every: Largest relative difference that is allowed in any step.
        last: The same for the last step alone, where weights were drawn from other random streams.

    Raises:
        RowFailed: The run has not all steps, a loss is not finite or did not fall, or the difference is larger.
    """
    losses = losses_of(machine.trained(row))
    values: dict[str, Any] = {"losses": rounded(losses)}
    require_falling(losses, steps=STEPS)
    if row == "train.cpu":
        return values
    if not (machine.trained("train.cpu") / "metrics.jsonl").exists():
        return {**values, "cpu": None}
    cpu = losses_of(machine.trained("train.cpu"))
    apart = {step: abs(losses[step] - cpu[step]) / cpu[step] for step in losses.keys() & cpu.keys()}
    values |= {"cpu": rounded(cpu), "largest_difference": round(max(apart.values()), 5)}
    bounds = dict.fromkeys(apart, every) if every is not None else {STEPS: last}
    for step, bound in bounds.items():
        if bound is not None and apart[step] > bound:
            found = f"{losses[step]:.4f} on the GPU, {cpu[step]:.4f} on the CPU"
            raise RowFailed(
                f"step {step}: the losses are {apart[step]:.1%} apart, above {bound:.0%} ({found})"
            )
    return values


def require_falling(losses: Mapping[int, float], *, steps: int) -> None:
    """Raise RowFailed unless the losses of all steps are there, and the last one is below the first."""
    first, end = losses.get(1), losses.get(steps)
    if first is None or end is None or not end < first < float("inf"):
        raise RowFailed(f"the loss did not fall in {steps} steps: {rounded(losses)}")


def rounded(losses: Mapping[int, float]) -> list[float]:
    """Return losses in the order of their steps, short enough for a table."""
    return [round(losses[step], 4) for step in sorted(losses)]


def without_problems(machine: Machine, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of `mb-guard doctor`, which must find no problem on a machine with a GPU."""
    if machine.gpu and values["problems"]:
        raise RowFailed("; ".join(values["problems"]))
    return values
