"""Time that a background save needs to copy its tensors to host memory, the first time and later, in one run.

The rows are measured in turn, so that other work on the machine affects all of them; the table has medians and the
fastest and slowest round. Half a GiB of tensors on the CPU, about half a minute.

Usage: python bench_staging.py [GIB [ROUNDS]]
"""

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable

import torch

from mb_checkpoint.save.staging_buffer import StagingBuffer
from mb_checkpoint.save.writing import DataFile, Piece

TENSORS = 32


def seconds(work: Callable[[], object]) -> float:
    """Return the duration in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def stage_twice(file: DataFile, *, reserved: int | None) -> tuple[float, float]:
    """Return the seconds of the first and the second save, with memory that was reserved before or not."""
    buffer = StagingBuffer()
    if reserved is not None:
        buffer.reserve(reserved)
        buffer.wait_until_reserved()
    first, later = (seconds(lambda: buffer.stage([file])) for _ in range(2))
    buffer.close()
    return first, later


def main(gib: float, rounds: int) -> None:
    """Measure and print."""
    tensors = [torch.randn(int(gib * 2**30) // 4 // TENSORS) for _ in range(TENSORS)]
    targets = [torch.zeros_like(tensor) for tensor in tensors]
    file = DataFile(name="file", pieces=tuple(Piece(index=None, data=tensor) for tensor in tensors))
    size = sum(tensor.numel() * 4 + 64 for tensor in tensors)
    rows = defaultdict(list)
    before = os.getloadavg()[0]
    for _ in range(rounds):
        first, later = stage_twice(file, reserved=None)
        rows["not reserved, first save"].append(first)
        rows["not reserved, second save"].append(later)
        first, later = stage_twice(file, reserved=size)
        rows["reserved, first save"].append(first)
        rows["reserved, second save"].append(later)
        rows["one memory copy of the bytes"].append(
            seconds(lambda: [one.copy_(other) for one, other in zip(targets, tensors, strict=True)])
        )
    copy = statistics.median(rows["one memory copy of the bytes"])
    print(
        f"{gib:g} GiB, {rounds} rounds, {torch.get_num_threads()} threads; load average {before:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores"
    )
    print(f"{'':32}{'seconds':>9}{'fastest':>9}{'slowest':>9}{'of a copy':>11}")
    for name, values in rows.items():
        middle = statistics.median(values)
        print(f"{name:32}{middle:9.3f}{min(values):9.3f}{max(values):9.3f}{middle / copy:11.2f}")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.5, int(sys.argv[2]) if len(sys.argv) > 2 else 9)
