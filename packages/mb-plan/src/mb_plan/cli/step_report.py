"""Text of a predicted step for `plan`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mb_plan.cli.console import open_console, print_statistics
from mb_plan.sweep.points import SweptPoint
from mb_plan.time.prediction import WAITING, Prediction
from mb_plan.time.saves import SavePlan, duration
from mb_plan.time.step import TERMS

BAR = 40
"""Characters of the longest bar."""
MEANINGS = {**TERMS, WAITING: "pipeline stages wait for each other"}
"""Part of a step -> what it is."""


def print_prediction(prediction: Prediction, *, precision_gpu: str, explained: bool) -> None:
    """Print speed, duration and range; with `explained` the parts of a step as bars."""
    print_statistics(_lines(prediction, gpu=precision_gpu))
    if explained:
        console = open_console()
        console.print()
        for line in bars(prediction):
            console.print(line, soft_wrap=True)


def _lines(prediction: Prediction, *, gpu: str) -> Iterator[tuple[str, str]]:
    low, high = prediction.likely
    speed = prediction.tokens_per_second_per_gpu
    yield "step", f"{duration(prediction.step_seconds)} predicted on {gpu}"
    yield "speed", f"{speed:,.0f} tokens/s per GPU, likely {low:,.0f} to {high:,.0f}"
    if prediction.mfu is not None:
        yield "MFU", f"{prediction.mfu:.1%}, {prediction.tflops_per_gpu:,.0f} TFLOP/s per GPU"
    if prediction.days is not None:
        hours = prediction.gpu_hours or 0.0
        yield (
            "run",
            f"{duration(prediction.days * 86_400)}, {hours:,.0f} GPU hours, without evaluation and saving",
        )
    if prediction.extrapolated:
        yield "extrapolated", prediction.extrapolated
    error = prediction.error
    runs = "1 published run" if error.runs == 1 else f"{error.runs} published runs"
    yield (
        "error",
        f"{error.median:.0%} in the median and {1 - error.within_25_percent:.0%} of runs above 25 %, over {runs} "
        f"({error.of}), predicted without those of the same {'GPU' if error.left_out == 'gpu' else 'model'}; over the "
        f"{error.never_fitted} of all GPUs that were never fitted, {error.never_fitted_median:.0%} and "
        f"{1 - error.never_fitted_within_25_percent:.0%}; "
        f"for the mean of Megatron-Bridge's releases {' to '.join(error.releases)}",
    )


def print_fitting(point: SweptPoint | None) -> None:
    """Print the cheapest change with which a run fits, as settings; None: none was found."""
    if point is None or point.plan is None or point.plan.needed_bytes is None:
        print(
            "fits with        none of the changes tried: recomputation, parallel sizes, optimizer state on the host"
        )
        return
    print(f"fits with        {' '.join(shlex.quote(setting) for setting in point.settings)}")
    text = f"{point.plan.needed_bytes / 2**30:,.2f} GiB"
    if point.prediction is not None:
        text += f", {duration(point.prediction.step_seconds)} a step"
    hosted = "optimizer.optimizer_cpu_offload" in point.values
    print(f"{'':17}{text}" + (" and the optimizer's step on the host" if hosted else ""))


def bars(prediction: Prediction) -> Iterator[str]:
    """Yield one line for each part of a step, the largest first."""
    largest = max(prediction.parts.values())
    for name, seconds in sorted(prediction.parts.items(), key=lambda item: -item[1]):
        share = seconds / prediction.step_seconds
        bar = "#" * max(1, round(BAR * seconds / largest))
        yield f"{name:<11}{duration(seconds):>9} {share:>6.1%}  {bar:<{BAR}}  {MEANINGS[name]}"


def print_saves(saves: SavePlan) -> None:
    """Print the interval of checkpoints, what a failure loses, and the disk space."""
    print_statistics(_save_lines(saves))


def _save_lines(saves: SavePlan) -> Iterator[tuple[str, str]]:
    held, written = duration(saves.held_seconds), duration(saves.write_seconds)
    best = f"{saves.best_interval:,} steps"
    if saves.interval is None or saves.lost_seconds is None:
        yield "saves", f"only at the end; every {best} would lose the least time"
    else:
        better = "" if saves.interval == saves.best_interval else f"; every {best} would lose the least time"
        between, lost = duration(saves.interval * saves.step_seconds), duration(saves.lost_seconds)
        yield (
            "saves",
            f"every {saves.interval:,} steps, {between}; each holds training for {held}, complete after {written}",
        )
        yield (
            "failures",
            f"every {duration(saves.failure_seconds)} in the mean; one loses up to {lost}{better}",
        )
    if saves.checkpoints is not None and saves.disk_bytes is not None:
        number = "1 checkpoint" if saves.checkpoints == 1 else f"up to {saves.checkpoints:,} checkpoints"
        tib = saves.disk_bytes >= 10 * 2**40
        size = f"{saves.disk_bytes / 2 ** (40 if tib else 30):,.1f} {'TiB' if tib else 'GiB'}"
        yield "disk", f"{size} for {number}"
