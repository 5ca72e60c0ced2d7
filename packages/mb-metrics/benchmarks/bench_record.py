"""What recording a step costs the host, beside the usual ways to do it; microseconds, and ratios to ours.

Run: python benchmarks/bench_record.py (needs torch and tensorboard). All ways see the same tensors in one process,
in turns, and each figure is the median of the turns. On a CPU `.item()` waits for nothing; on a GPU it waits for
the step, which is the real cost and not in these figures.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

import torch
from torch.utils.tensorboard import SummaryWriter

from mb_metrics import Metrics, Sink

STEPS_PER_INTERVAL = 10
TURNS = 30


class Nowhere(Sink):
    """Takes everything and writes nothing, so that only the recording is timed."""


def microseconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1e6


def ours(values: Mapping[str, torch.Tensor]) -> tuple[float, float]:
    """Return the cost of a record, and of the one that ends an interval."""
    metrics = Metrics([Nowhere()], log_interval=STEPS_PER_INTERVAL)
    costs = [
        microseconds(lambda step=step: metrics.record(step, values))
        for step in range(1, STEPS_PER_INTERVAL + 1)
    ]
    return statistics.median(costs[:-1]), costs[-1]


def item_each(values: Mapping[str, torch.Tensor]) -> float:
    return microseconds(lambda: {name: value.item() for name, value in values.items()})


def add_scalar_each(values: Mapping[str, torch.Tensor], writer: SummaryWriter) -> float:
    return microseconds(lambda: [writer.add_scalar(name, value, 1) for name, value in values.items()])


def measure(count: int, device: str) -> dict[str, float]:
    values = {f"metric {i}": torch.tensor(float(i), device=device) for i in range(count)}
    turns = []
    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder, max_queue=100_000, flush_secs=3600)
        for _ in range(TURNS):
            record, flush = ours(values)
            turns.append((record, flush, item_each(values), add_scalar_each(values, writer)))
        writer.close()
    record, flush, item, scalar = (statistics.median(column) for column in zip(*turns, strict=True))
    per_step = record + (flush - record) / STEPS_PER_INTERVAL
    return {"record": record, "flush": flush, "per step": per_step, ".item()": item, "add_scalar": scalar}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    sys.stdout.write(f"{device}, {STEPS_PER_INTERVAL} steps per interval, microseconds\n")
    head = (
        "metrics",
        "record",
        "flush",
        "per step",
        ".item()",
        "add_scalar",
        ".item() / ours",
        "add_scalar / ours",
    )
    sys.stdout.write("  ".join(f"{name:>10}" for name in head) + "\n")
    for count in (10, 100, 1000):
        cost = measure(count, device)
        ratios = [cost[".item()"] / cost["per step"], cost["add_scalar"] / cost["per step"]]
        sys.stdout.write("  ".join(f"{figure:>10.1f}" for figure in (count, *cost.values(), *ratios)) + "\n")


if __name__ == "__main__":
    main()
