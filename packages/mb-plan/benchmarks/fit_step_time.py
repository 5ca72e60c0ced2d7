"""Fit the coefficients of the step time to the published runs.

    python benchmarks/fit_step_time.py            # print the fit and its errors on runs that it has not seen
    python benchmarks/fit_step_time.py --table    # and each run: published, predicted, error
    python benchmarks/fit_step_time.py --markdown # the table of errors in the documentation
    python benchmarks/fit_step_time.py --write    # write src/mb_plan/time/fit.json

The sum of the errors' Huber losses, of the logarithm of predicted to published time, is minimized by the method of
Levenberg and Marquardt in the logarithms of the coefficients, with a weak pull to what is expected of each, and in that
of a factor for each GPU, of the time of products. Errors are those of models left out of the fit, one after the other,
with all their runs; the same is done with releases and with GPUs. Runs with "fitted": false are in no fit: they only
judge it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from mb_plan.shape.model_shape import ModelShape, read_shape
from mb_plan.time.gpus import GPU_SPEEDS
from mb_plan.time.prediction import kind_of
from mb_plan.time.step import PRODUCTS, TERMS, StepSettings, step_terms

RUNS = Path(__file__).with_name("published_runs.json")
FILE = Path(__file__).parents[1] / "src" / "mb_plan" / "time" / "fit.json"
EXPECTED = {
    "bf16": (1.1, 1.3, 1.5),
    "fp8": (1.2, 1.5, 2.5),
    "fp4": (1.2, 2.0, 5.0),
    "experts": (1.2, 2.0, 5.0),
    "attention": (1.2, 2.0, 4.0),
    "memory": (1.0, 1.3, 2.5),
    "scan": (1.0, 4.0, 12.0),
    "launches": (1.0, 3.0, 15.0),
    "replays": (0.2, 1.0, 5.0),
    "tensor": (0.02, 0.5, 2.0),
    "routing": (0.2, 1.0, 4.0),
    "waits": (0.2, 1.0, 8.0),
    "gradients": (0.02, 0.5, 1.5),
}
"""Lowest, expected and highest coefficient. Large products reach 65 to 90 % of the peak in BF16, less in eight and four
bits, whose conversions and scaling factors do not shrink with them; kernels reach 40 to 100 % of the memory's speed;
Mamba's scan also moves the states of its chunks in float32, and computes them a second time backward;
the host needs 3 to 15 microseconds to launch a kernel of PyTorch, a graph about one; communication is between hidden
and slower than the link."""
PULL = 0.1
"""Weight of the squared logarithm of a coefficient to the expected one, against the loss of one run."""
GPU_FACTOR = (0.6, 1.0, 1.6)
GPU_PULL = 1.0
"""As `EXPECTED` and `PULL`, of a GPU's factor: the data sheet is believed more than a few runs."""
HUBER = 0.15
"""Errors above it count linearly, so that single runs do not decide."""
STEPS = 200


_UNPUBLISHED = {"add_bias_linear": False, "position_embedding_type": "rope"}
"""Fields of all published models, unless "models" has others."""
_LAYOUT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A run with its published speed."""

    row: Mapping[str, Any]
    """The published row, with "gpu", "format", and what its recipe sets: "graphs", "dispatcher", "recomputed"."""
    model: Mapping[str, Any]
    """Megatron's fields of the model, with the layout of the run."""

    @property
    def fitted(self) -> bool:
        """The run is in the fit, not kept back to judge it."""
        return bool(self.row.get("fitted", True))

    @property
    def family(self) -> str:
        """Name of the model without a remark in parentheses."""
        return str(self.row["model"]).partition(" (")[0]

    @property
    def group(self) -> tuple[str, str, str]:
        """GPU, precision, and kind of model."""
        return self.row["gpu"], self.row["format"], kind_of(self.shape, frozen=self.settings.frozen)

    @property
    def shape(self) -> ModelShape:
        """Sizes of the model and its layout."""
        return read_shape(self.model)

    @property
    def settings(self) -> StepSettings:
        """What determines the time of a step besides the sizes."""
        row = self.row
        replicas = row["gpus"] // (row["tp"] * row["pp"] * row["cp"])
        return StepSettings(
            gpu=GPU_SPEEDS[row["gpu"]],
            precision=row["format"],
            seq_length=row["seq_length"],
            micro_batch_size=row["micro_batch_size"],
            microbatches=max(1, row["global_batch_size"] // (replicas * row["micro_batch_size"])),
            replicas=replicas,
            graphs="step" if row["graphs"] == "step" else tuple(row["graphs"]),
            dispatcher=row.get("dispatcher", "alltoall"),
            recomputed=tuple(row.get("recomputed", ())),
            bf16_layers=tuple(row.get("bf16_layers", (0, 0))),
            fused_experts=row.get("fused_experts", False),
            fsdp=bool(row["fsdp"]),
            frozen=row["task"] == "lora",
        )

    @property
    def step_seconds(self) -> float:
        """Published time of a step."""
        row = self.row
        tokens: int = row["global_batch_size"] * row["seq_length"]
        speed: float = row["gpus"] * row["tokens_per_second_per_gpu"]
        return tokens / speed


@cache
def published_data() -> Mapping[str, Any]:
    """Return the file: "source", "models" by name, "runs", and "left_out" with reasons."""
    found: dict[str, Any] = json.loads(RUNS.read_text(encoding="utf-8"))
    return found


def published_runs() -> Iterator[PublishedRun]:
    """Yield the runs of models whose sizes are known."""
    data = published_data()
    for row in data["runs"]:
        if row["model"] in data["left_out"] or "left_out" in row:
            continue
        layout = {field: row[name] or 1 for name, field in _LAYOUT.items()}
        yield PublishedRun(row=row, model={**_UNPUBLISHED, **data["models"][row["model"]], **layout})


@dataclass(frozen=True, slots=True)
class Row:
    """Terms of a run in units of its published time, in the order of `TERMS`, its GPU, and if it is in the fit."""

    terms: Sequence[float]
    gpu: str
    fitted: bool = True

    def parts(self, found: Coefficients) -> list[float]:
        """Return the time of each term with its coefficient and the factor of the GPU."""
        factor = found.factors.get(self.gpu, 1.0)
        return [
            found.terms[at] * value * (factor if name in PRODUCTS else 1.0)
            for at, (name, value) in enumerate(zip(TERMS, self.terms, strict=True))
        ]

    def error(self, found: Coefficients) -> float:
        """Return the logarithm of predicted to published time."""
        return log(sum(self.parts(found)))


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Result of a fit: a coefficient for each term, a factor for each GPU that has runs."""

    terms: Sequence[float]
    factors: dict[str, float]


def row_of(run: PublishedRun) -> Row:
    """Return the terms of a run."""
    total = step_terms(run.shape, run.settings).total
    return Row([total[name] / run.step_seconds for name in TERMS], run.row["gpu"], run.fitted)


def fit(rows: Sequence[Row]) -> Coefficients:
    """Return the coefficients for those of some runs that are in the fit."""
    rows = [row for row in rows if row.fitted]
    gpus = sorted({row.gpu for row in rows})
    bounds = [*EXPECTED.values(), *([GPU_FACTOR] * len(gpus))]
    low, prior, high = ([log(bound[at]) for bound in bounds] for at in range(3))
    pulls = [PULL] * len(EXPECTED) + [GPU_PULL] * len(gpus)

    def read(theta: Sequence[float]) -> Coefficients:
        values = [exp(t) for t in theta]
        return Coefficients(values[: len(TERMS)], dict(zip(gpus, values[len(TERMS) :], strict=True)))

    def objective(theta: Sequence[float]) -> float:
        errors = (abs(row.error(read(theta))) for row in rows)
        losses = (0.5 * e * e if e < HUBER else HUBER * (e - 0.5 * HUBER) for e in errors)
        return sum(losses) + sum(w * (t - p) ** 2 for w, t, p in zip(pulls, theta, prior, strict=True))

    theta, damping = list(prior), 1e-2
    value = objective(theta)
    for _ in range(STEPS):
        pulled = [2 * w * (t - p) for w, t, p in zip(pulls, theta, prior, strict=True)]
        matrix, gradient = _derivatives(rows, read(theta), gpus, pulls, pulled)
        while damping < 1e8:
            damped = [
                [x * (1 + damping) if i == j else x for j, x in enumerate(row)]
                for i, row in enumerate(matrix)
            ]
            change = _solve(damped, [-g for g in gradient])
            moved = [
                min(max(t + min(max(c, -1.0), 1.0), lo), hi)
                for t, c, lo, hi in zip(theta, change, low, high, strict=True)
            ]
            found = objective(moved)
            if found <= value:
                break
            damping *= 4
        else:
            break
        gained, theta, value, damping = value - found, moved, found, max(damping / 3, 1e-9)
        if gained < 1e-10:
            break
    return read(theta)


def _derivatives(
    rows: Sequence[Row],
    found: Coefficients,
    gpus: Sequence[str],
    pulls: Sequence[float],
    pulled: Sequence[float],
) -> tuple[list[list[float]], list[float]]:
    """Return the Gauss-Newton matrix and the gradient."""
    count, gradient = len(pulls), list(pulled)
    matrix = [[2 * pulls[i] if i == j else 0.0 for j in range(count)] for i in range(count)]
    for row in rows:
        parts = row.parts(found)
        total = sum(parts)
        shares = [part / total for part in parts]
        products = sum(share for name, share in zip(TERMS, shares, strict=True) if name in PRODUCTS)
        shares += [products if gpu == row.gpu else 0.0 for gpu in gpus]
        error = log(total)
        weight = 1.0 if abs(error) < HUBER else HUBER / abs(error)
        for i, share in enumerate(shares):
            if share:
                gradient[i] += weight * error * share
                for j, other in enumerate(shares):
                    matrix[i][j] += weight * share * other
    return matrix, gradient


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a symmetric positive definite system by elimination."""
    rows, count = [[*row, r] for row, r in zip(matrix, right, strict=True)], len(right)
    for i in range(count):
        for j in range(i + 1, count):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [x - factor * y for x, y in zip(rows[j], rows[i], strict=True)]
    solution = [0.0] * count
    for i in reversed(range(count)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, count))
        solution[i] = (rows[i][count] - known) / rows[i][i]
    return solution


def left_out_errors(
    runs: Sequence[PublishedRun], rows: Sequence[Row], key: Callable[[PublishedRun], object]
) -> list[float]:
    """Return the relative error of the throughput of each run, predicted without the runs of the same key."""
    keys = [key(run) for run in runs]
    fits = {
        left_out: fit([row for row, other in zip(rows, keys, strict=True) if other != left_out])
        for left_out in sorted(set(keys), key=str)
    }
    return [1 / exp(row.error(fits[own])) - 1 for row, own in zip(rows, keys, strict=True)]


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Return the median and the largest error, and the fraction within 25 %."""
    sizes = [abs(error) for error in errors]
    return {
        "median": round(median(sizes), 4),
        "within_25_percent": round(sum(size < 0.25 for size in sizes) / len(sizes), 4),
        "largest": round(max(sizes), 4),
    }


TAIL = 0.035
"""Fraction of the errors on each side of a range of nine of ten. It is less than 5 %, because the errors of one model
or GPU are similar, and those of the next further off. `coverage` measures what that gives."""


def throughput_range(errors: Sequence[float], tail: float = TAIL) -> tuple[float, float]:
    """Return the range of published to predicted throughput without a fraction on each side, less one run."""
    ratios = sorted(1 / (1 + error) for error in errors)
    outside = int(tail * (len(ratios) + 1))
    return ratios[max(0, outside - 1)], ratios[min(len(ratios) - 1, len(ratios) - outside)]


def widest(*ranges: tuple[float, float]) -> tuple[float, float]:
    """Return the range that contains all."""
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def group_range(group: object, groups: Sequence[object], errors: Sequence[float]) -> tuple[float, float]:
    """Return the range of a group: that of all runs, or wider if its own errors are."""
    own = [error for other, error in zip(groups, errors, strict=True) if other == group]
    return widest(throughput_range(errors), *([throughput_range(own)] if own else []))


def coverage(keys: Sequence[object], groups: Sequence[object], errors: Sequence[float]) -> float:
    """Return the fraction of runs within a range that is made from the errors of runs with other keys."""
    held = 0
    for key in set(keys):
        others = [at for at, other in enumerate(keys) if other != key]
        seen = [groups[at] for at in others], [errors[at] for at in others]
        for at, own in enumerate(keys):
            if own == key:
                low, high = group_range(groups[at], *seen)
                held += low <= 1 / (1 + errors[at]) <= high
    return round(held / len(keys), 4)


LEFT_OUT: dict[str, Callable[[PublishedRun], object]] = {
    "model": lambda run: run.family,
    "release": lambda run: run.row["release"],
    "gpu": lambda run: run.row["gpu"],
}
"""What is left out of a fit."""


def result() -> tuple[dict[str, Any], list[PublishedRun], list[float]]:
    """Return the content of fit.json, the runs, and their errors with their model left out."""
    runs = list(published_runs())
    rows, groups = [row_of(run) for run in runs], [run.group for run in runs]
    found = fit(rows)
    errors = {name: left_out_errors(runs, rows, key) for name, key in LEFT_OUT.items()}
    unseen = errors["model"]
    by_group = {
        group: [error for other, error in zip(groups, unseen, strict=True) if other == group]
        for group in sorted(set(groups))
    }
    releases = sorted({run.row["release"] for run in runs})
    content: dict[str, Any] = {
        "coefficients": {name: round(c, 4) for name, c in zip(TERMS, found.terms, strict=True)},
        "gpu_factors": {gpu: round(factor, 4) for gpu, factor in found.factors.items()},
        "runs": len(runs),
        "fitted_runs": sum(run.fitted for run in runs),
        "releases": [releases[0], releases[-1]],
        "errors": {
            **{f"{name}_left_out": summary(values) for name, values in errors.items()},
            "fitted": summary([1 / exp(row.error(found)) - 1 for row in rows if row.fitted]),
            "kept_back": summary([1 / exp(row.error(found)) - 1 for row in rows if not row.fitted]),
        },
        "errors_by_group": [
            {
                "gpu": group[0],
                "precision": group[1],
                "kind": group[2],
                "runs": len(own),
                **summary(own),
                "range": [round(bound, 4) for bound in group_range(group, groups, unseen)],
            }
            for group, own in by_group.items()
        ],
        "unseen_range": [round(bound, 4) for bound in throughput_range(errors["gpu"])],
        "in_range": {
            name: coverage([key(run) for run in runs], groups, errors[name]) for name, key in LEFT_OUT.items()
        },
    }
    return content, runs, unseen


def markdown(content: dict[str, Any]) -> str:
    """Return the table of errors by GPU, precision and kind of model."""
    lines = [
        "| GPU | precision | model | runs | median error | within 25 % | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each['gpu']} | {each['precision']} | {each['kind']} | {each['runs']} | {each['median']:.1%} | "
        f"{each['within_25_percent']:.0%} | {each['largest']:.0%} |"
        for each in content["errors_by_group"]
    ]
    return "\n".join(lines)


def main() -> None:
    """Fit, print, and write if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print each run")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of errors of the documentation"
    )
    options = parser.parse_args()
    found, runs, errors = result()
    print(markdown(found) if options.markdown else json.dumps(found, indent=1))
    if options.table:
        for run, error in zip(runs, errors, strict=True):
            row = run.row
            speed = row["tokens_per_second_per_gpu"]
            layout = (
                f"{row['gpus']:5} GPUs tp {row['tp']} pp {row['pp']:2} cp {row['cp']} ep {row['ep'] or 1:2}"
            )
            print(
                f"{row['release']:8} {row['model']:26} {row['gpu']:6} {row['format']:5} {layout} "
                f"{speed:8,.0f} {speed * (1 + error):8,.0f} {error:+7.1%}"
            )
    if options.write:
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
