"""Host overhead of recording compared with other methods: microseconds per step, ratios, and synchronizations.

Run: python benchmarks/bench_record.py [--turns N] (requires torch, tensorboard, wandb and mlflow; missing packages are
skipped). All methods record the same tensors in one process, in alternating rounds; each number is the median of the
rounds. W&B is offline and MLflow writes to sqlite in this process, without a network: both are faster than in
production. A synchronization is a call that reads a tensor on the host (`item`, `tolist`, ...). On a CPU it is free; on
a GPU it waits for the step, which is the dominant cost and is not included in these numbers.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mb_metrics import Metrics, Sink

STEPS_PER_INTERVAL = 10
SLOW_TURNS = 3
READS = {
    "item",
    "tolist",
    "cpu",
    "numpy",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__format__",
    "__array__",
}

Values = Mapping[Any, torch.Tensor]
Way = Callable[[int, Values], object]


class Nowhere(Sink):
    """Sink that discards all records, so that only the recording is timed."""


class CountReads(TorchFunctionMode):
    """Counter of the calls that synchronize the host with a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a call and execute it."""
        self.count += getattr(func, "__name__", "") in READS
        return func(*args, **(kwargs or {}))


def microseconds(action: Callable[[], object]) -> float:
    """Return the duration of a call."""
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1e6


def ours(values: Values) -> tuple[float, float]:
    """Return the cost of a `record` call, and of the call that ends an interval."""
    metrics = Metrics([Nowhere()], log_interval=STEPS_PER_INTERVAL)
    costs = [
        microseconds(lambda step=step: metrics.record(step, values))
        for step in range(1, STEPS_PER_INTERVAL + 1)
    ]
    return statistics.median(costs[:-1]), costs[-1]


def reads_of_ours(values: Values) -> tuple[int, int]:
    """Return the synchronizations of steps within a log interval, and of the step that ends it."""
    metrics = Metrics([Nowhere()], log_interval=STEPS_PER_INTERVAL)
    with CountReads() as reads:
        for step in range(1, STEPS_PER_INTERVAL):
            metrics.record(step, values)
        between = reads.count
        metrics.record(STEPS_PER_INTERVAL, values)
    return between, reads.count - between


@contextmanager
def other_ways(folder: str) -> Iterator[dict[str, Way]]:
    """Yield the other methods of recording a step."""
    ways: dict[str, Way] = {
        ".item() each": lambda step, values: {name: value.item() for name, value in values.items()}
    }
    with ExitStack() as stack:
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - only if it is installed

            writer = stack.enter_context(SummaryWriter(folder, max_queue=100_000, flush_secs=3600))
            ways["add_scalar each"] = lambda step, values: [
                writer.add_scalar(name, value, step) for name, value in values.items()
            ]
        if find_spec("wandb"):
            import wandb  # noqa: PLC0415 - only if it is installed

            os.environ["WANDB_SILENT"] = "true"
            run = stack.enter_context(wandb.init(project="bench", dir=folder, mode="offline"))
            ways["wandb.log"] = lambda step, values: run.log(dict(values))
        if find_spec("mlflow"):
            import mlflow  # noqa: PLC0415 - only if it is installed

            mlflow.set_tracking_uri(f"sqlite:///{Path(folder, 'mlflow.db')}")
            stack.enter_context(mlflow.start_run())
            ways["mlflow.log_metrics"] = lambda step, values: mlflow.log_metrics(dict(values), step=step)
        yield ways


def measure(count: int, device: str, ways: Mapping[str, Way], turns: int) -> list[tuple[str, float, float]]:
    """Return name, microseconds and synchronizations of each method for a number of metrics."""
    values = {f"metric {i}": torch.tensor(float(i), device=device) for i in range(count)}
    vector = {tuple(values): torch.stack(list(values.values()))}
    own = [ours(values) for _ in range(turns)]
    joint = statistics.median(ours(vector)[0] for _ in range(turns))
    record, flush = (statistics.median(column) for column in zip(*own, strict=True))
    between, at_the_end = reads_of_ours(values)
    rows = [
        ("ours: record", record, between),
        ("ours: one vector", joint, reads_of_ours(vector)[0]),
        (f"ours: every {STEPS_PER_INTERVAL}th", flush, at_the_end),
        (
            "ours: mean of a step",
            record + (flush - record) / STEPS_PER_INTERVAL,
            (between + at_the_end) / STEPS_PER_INTERVAL,
        ),
    ]
    for name, way in ways.items():
        few = min(turns, SLOW_TURNS) if name == "mlflow.log_metrics" else turns
        costs = [microseconds(lambda step=step, way=way: way(step, values)) for step in range(few)]
        with CountReads() as reads:
            way(few, values)
        rows.append((name, statistics.median(costs), reads.count))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="what recording a step costs the host")
    parser.add_argument("--turns", type=int, default=30)
    turns = parser.parse_args().turns
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    sys.stdout.write(f"{device}, {STEPS_PER_INTERVAL} steps per interval\n")
    sys.stdout.write(f"{'metrics':>8}  {'way':<22}{'us a step':>12}{'ratio':>8}{'waits':>8}\n")
    with tempfile.TemporaryDirectory() as folder, other_ways(folder) as ways:
        for count in (10, 100, 1000):
            rows = measure(count, device, ways, turns)
            mean = next(cost for name, cost, _ in rows if name == "ours: mean of a step")
            for name, cost, waits in rows:
                sys.stdout.write(f"{count:>8}  {name:<22}{cost:>12.1f}{cost / mean:>8.1f}{waits:>8.1f}\n")


if __name__ == "__main__":
    main()
