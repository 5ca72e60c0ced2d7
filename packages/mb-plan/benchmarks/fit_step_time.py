"""Fit the coefficients of the step time to the published runs.

    python benchmarks/fit_step_time.py            # print the fit and its errors on runs that it has not seen
    python benchmarks/fit_step_time.py --table    # and each run: published, predicted, error
    python benchmarks/fit_step_time.py --write    # write src/mb_plan/time/fit.json

The sum of the errors' Huber losses, of the logarithm of predicted to published time, is minimized by the method of
Levenberg and Marquardt in the logarithms of the coefficients, with a weak pull to what is expected of each. Errors are
those of models left out of the fit, one after the other, with all their runs.
"""

import argparse
import json
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import median

from mb_plan.time.published import PublishedRun, published_runs
from mb_plan.time.step import TERMS, step_terms

FILE = Path(__file__).parents[1] / "src" / "mb_plan" / "time" / "fit.json"
EXPECTED = {
    "bf16": (1.1, 1.3, 1.5),
    "fp8": (1.2, 1.5, 2.5),
    "fp4": (1.2, 2.0, 5.0),
    "experts": (1.2, 2.0, 5.0),
    "attention": (1.2, 2.0, 4.0),
    "memory": (1.0, 1.3, 2.5),
    "launches": (1.0, 3.0, 15.0),
    "replays": (0.2, 1.0, 5.0),
    "tensor": (0.02, 0.5, 2.0),
    "routing": (0.2, 1.0, 4.0),
    "gradients": (0.02, 0.5, 1.5),
    "optimizer": (0.5, 1.3, 4.0),
}
"""Lowest, expected and highest coefficient. Large products reach 65 to 90 % of the peak in BF16, less in eight and four
bits, whose conversions and scaling factors do not shrink with them; kernels reach 40 to 100 % of the memory's speed;
the host needs 3 to 15 microseconds to launch a kernel of PyTorch, a graph about one; communication is between hidden
and slower than the link."""
PULL = 0.1
"""Weight of the squared logarithm of a coefficient to the expected one, against the loss of one run."""
HUBER = 0.15
"""Errors above it count linearly, so that single runs do not decide."""
STEPS = 200


def features(run: PublishedRun) -> list[float]:
    """Return the terms of a run in the order of `TERMS`, in units of its published time."""
    total = step_terms(run.shape, run.settings).total
    return [total[name] / run.step_seconds for name in TERMS]


def fit(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the coefficients, for the terms of each run in units of its published time."""
    low, prior, high = ([log(bounds[at]) for bounds in EXPECTED.values()] for at in range(3))
    theta, damping = list(prior), 1e-2
    value = _objective(rows, theta, prior)
    for _ in range(STEPS):
        matrix, gradient = _derivatives(rows, theta, prior)
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
            found = _objective(rows, moved, prior)
            if found <= value:
                break
            damping *= 4
        else:
            break
        gained, theta, value, damping = value - found, moved, found, max(damping / 3, 1e-9)
        if gained < 1e-10:
            break
    return [exp(t) for t in theta]


def _errors(rows: Sequence[Sequence[float]], coefficients: Sequence[float]) -> list[float]:
    """Return the logarithm of predicted to published time of each run."""
    return [log(sum(c * x for c, x in zip(coefficients, row, strict=True))) for row in rows]


def _objective(rows: Sequence[Sequence[float]], theta: Sequence[float], prior: Sequence[float]) -> float:
    losses = (
        0.5 * e * e if abs(e) < HUBER else HUBER * (abs(e) - 0.5 * HUBER)
        for e in _errors(rows, [exp(t) for t in theta])
    )
    return sum(losses) + PULL * sum((t - p) ** 2 for t, p in zip(theta, prior, strict=True))


def _derivatives(
    rows: Sequence[Sequence[float]], theta: Sequence[float], prior: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """Return the Gauss-Newton matrix and the gradient."""
    count, coefficients = len(theta), [exp(t) for t in theta]
    matrix = [[2 * PULL if i == j else 0.0 for j in range(count)] for i in range(count)]
    gradient = [2 * PULL * (t - p) for t, p in zip(theta, prior, strict=True)]
    for row in rows:
        parts = [c * x for c, x in zip(coefficients, row, strict=True)]
        total = sum(parts)
        error, shares = log(total), [part / total for part in parts]
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


def left_out_errors(runs: Sequence[PublishedRun], rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the relative error of the throughput of each run, predicted without the runs of its model."""
    errors = [0.0] * len(runs)
    for family in sorted({run.family for run in runs}):
        coefficients = fit([row for run, row in zip(runs, rows, strict=True) if run.family != family])
        for at, run in enumerate(runs):
            if run.family == family:
                errors[at] = 1 / exp(_errors([rows[at]], coefficients)[0]) - 1
    return errors


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Return the median and the largest error, and the fraction within 25 %."""
    sizes = [abs(error) for error in errors]
    return {
        "median": round(median(sizes), 4),
        "within_25_percent": round(sum(size < 0.25 for size in sizes) / len(sizes), 4),
        "largest": round(max(sizes), 4),
    }


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return the value that a fraction of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def result() -> tuple[dict[str, object], list[PublishedRun], list[float]]:
    """Return the content of fit.json, the runs, and their errors with their model left out."""
    runs = list(published_runs())
    rows = [features(run) for run in runs]
    coefficients = fit(rows)
    unseen = left_out_errors(runs, rows)
    seen = [1 / exp(error) - 1 for error in _errors(rows, coefficients)]
    models = {
        family: summary([error for run, error in zip(runs, unseen, strict=True) if run.family == family])
        for family in sorted({run.family for run in runs})
    }
    found: dict[str, object] = {
        "coefficients": {name: round(c, 4) for name, c in zip(TERMS, coefficients, strict=True)},
        "runs": len(runs),
        "errors": {"model_left_out": summary(unseen), "all_runs": summary(seen)},
        "errors_by_model_left_out": models,
        "throughput_range": [round(1 / (1 + quantile(unseen, at)), 4) for at in (0.95, 0.05)],
    }
    return found, runs, unseen


def main() -> None:
    """Fit, print, and write if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print each run")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    options = parser.parse_args()
    found, runs, errors = result()
    print(json.dumps(found, indent=1))
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
