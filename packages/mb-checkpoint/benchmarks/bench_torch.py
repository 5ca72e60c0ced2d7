"""Saves of a plain PyTorch loop compared with those of torch.distributed.checkpoint, in turn, in about a minute.

One process, a network of about 50 million parameters with AdamW on the CPU. Both programs save the same tensors, force
the files to the disk, and delete their previous checkpoint. TorchCheckpointer also computes the checksum of every file.

Usage: python bench_torch.py [WIDTH]
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

from mb_checkpoint import TorchCheckpointer

SAVES = 5


def seconds(work: Callable[[], object]) -> float:
    """Return the duration in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(width: int) -> None:
    """Measure and print."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, width)).square().mean().backward()
    optimizer.step()
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory() as place:
        dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=0, world_size=1)
        state = {"model": model, "optimizer": optimizer}
        ours = TorchCheckpointer(f"{place}/ours", state, most_recent_k=1, log=lambda _line: None)
        later = TorchCheckpointer(
            f"{place}/later", state, most_recent_k=1, async_save=True, log=lambda _line: None
        )
        time.sleep(8)  # as in a run, where the writer process has long started when the first save comes
        for number in range(1, SAVES + 1):
            note("TorchCheckpointer, at once", seconds(lambda: ours.save(number)))  # noqa: B023 - called here
            target = Path(place, "theirs", str(number))

            def theirs(target: Path = target) -> None:
                weights, moments = get_state_dict(model, optimizer)
                dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=str(target))
                for older in target.parent.iterdir():
                    if older != target:
                        shutil.rmtree(older)

            note("torch save", seconds(theirs))
            note("TorchCheckpointer, background: stall", seconds(lambda: later.save(number)))  # noqa: B023 - called here
            later.poll(blocking=True)
            began = time.perf_counter()
            weights, moments = get_state_dict(model, optimizer)
            future = dcp.async_save(
                {"model": weights, "optimizer": moments}, checkpoint_id=f"{place}/{number}"
            )
            note("torch async_save: stall", time.perf_counter() - began)
            future.result()
            shutil.rmtree(f"{place}/{number}")
        size = sum(path.stat().st_size for path in Path(place, "ours").glob("iter_*/*.distcp"))
        later.close()
    print(f"{size / 2**30:.2f} GiB, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    print(f"{'':40}{'first':>8}{'later':>8}{'GiB/s':>8}  (seconds; median of the later saves)")
    for name, values in rows.items():
        middle = statistics.median(values[1:])
        print(f"{name:40}{values[0]:8.2f}{middle:8.2f}{size / 2**30 / middle:8.2f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2048)
    dist.destroy_process_group()
