"""Time for which a save blocks a training step, as a multiple of a normal step, and cost of the checksums.

One process, a GPT of about 50 million parameters with AdamW on the CPU, all in one run of about two minutes: a
synchronous save, a save in the background, and torch's own `torch.distributed.checkpoint.save` and `async_save` of the
same tensors. Each program deletes its previous checkpoint. Normal steps are taken before, between and after the saves,
so that other work on the machine affects all rows.

Usage: python bench_save.py [HIDDEN [LAYERS]]
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

import mb_host

mb_host.install()
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import tiny_run  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

from mb_checkpoint import CheckpointConfig, DefaultCheckpointManager  # noqa: E402
from mb_checkpoint.formats.manifest import hash_file  # noqa: E402

tiny_run.SEQ = 128
SAVES = 3


def normal_steps(run: tiny_run.TinyRun, count: int = 2) -> list[float]:
    """Train while no save is in flight; return the seconds of each step."""
    return [seconds(lambda: run.train(1)) for _ in range(count)]


def seconds(work: Callable[[], object]) -> float:
    """Return the duration in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def with_manager(run: tiny_run.TinyRun, folder: str, **section: object) -> tiny_run.TinyRun:
    """Replace the manager of the run."""
    run.manager = DefaultCheckpointManager(CheckpointConfig(save=folder, most_recent_k=1, **section))
    return run


def background(run: tiny_run.TinyRun) -> tuple[list[float], list[float], float]:
    """Save in the background between steps; return the stalls, the steps during the save, and the cost of a poll."""
    stalls, slowed, polls = [], [], []
    for _ in range(SAVES):
        stalls.append(seconds(run.save))
        done = None
        while done is None:
            slowed.append(seconds(lambda: run.train(1)))
            began = time.perf_counter()
            done = run.manager.finalize_async_saves()
            polls.append(time.perf_counter() - began)
    run.manager.close()
    return stalls, slowed, statistics.median(polls)


def tensors_of(run: tiny_run.TinyRun) -> dict[str, torch.Tensor]:
    """Return the weights and the optimizer state by name."""
    weights = dict(run.model[0].named_parameters())
    tensors = {f"model.{name}": value.detach() for name, value in weights.items()}
    return tensors | {f"optimizer.{name}": value for name, value in run.optimizer_tensors().items()}


def synchronous(run: tiny_run.TinyRun, place: str) -> tuple[list[float], list[float]]:
    """Return the seconds of synchronous saves, in turn with those of torch."""
    with_manager(run, f"{place}/sync")
    tensors = tensors_of(run)
    ours, theirs = [], []
    for number in range(2 * SAVES):
        ours.append(seconds(run.save))
        target = Path(place, "dcp_sync", str(number))
        theirs.append(seconds(lambda target=target: save_and_keep_one(tensors, target)))
    return ours, theirs


def save_and_keep_one(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Save with torch, then delete the older checkpoints."""
    dcp.save(tensors, checkpoint_id=str(folder))
    for older in folder.parent.iterdir():
        if older != folder:
            shutil.rmtree(older)


def torch_async(run: tiny_run.TinyRun, folder: str) -> tuple[list[float], list[float]]:
    """Do the same with torch's asynchronous save; return the stalls and the steps meanwhile."""
    tensors = tensors_of(run)
    stalls, slowed = [], []
    for number in range(SAVES):
        began = time.perf_counter()
        future = dcp.async_save(tensors, checkpoint_id=f"{folder}/{number}")
        stalls.append(time.perf_counter() - began)
        while not future.done():
            slowed.append(seconds(lambda: run.train(1)))
        future.result()
    return stalls, slowed


def measured(run: tiny_run.TinyRun, place: str) -> dict[str, float]:
    """Return the seconds of each kind of save."""
    run.train(1)
    steps = normal_steps(run)
    sync, torch_sync = synchronous(run, place)
    with_manager(run, f"{place}/unreserved", async_save=True)
    steps += normal_steps(run)  # as in a run, where the writer has long started when the first save comes
    unreserved, _, _ = background(run)
    with_manager(run, f"{place}/async", async_save=True)
    run.manager.reserve_memory(run.model, run.optimizer)  # as RunCheckpointer does after the first step
    steps += normal_steps(run)
    stalls, slowed, poll = background(run)
    steps += normal_steps(run)
    theirs, theirs_slowed = torch_async(run, f"{place}/dcp")
    steps += normal_steps(run)
    files = list(Path(place, "sync").glob("iter_*/*.distcp"))
    return {
        "step": statistics.median(steps),
        "synchronous save, first": sync[0],
        "synchronous save, later": statistics.median(sync[1:]),
        "torch save, later": statistics.median(torch_sync[1:]),
        "background save, first, memory not reserved": unreserved[0],
        "background save, later, memory not reserved": statistics.median(unreserved[1:]),
        "background save, first: stall": stalls[0],
        "background save, later: stall": statistics.median(stalls[1:]),
        "step while a save is being written": statistics.median(slowed),
        "poll after a step": poll,
        "torch async_save, first: stall": theirs[0],
        "torch async_save, later: stall": statistics.median(theirs[1:]),
        "step while torch writes": statistics.median(theirs_slowed),
        **{
            f"{algorithm} of all data (read and hashed)": sum(
                seconds(lambda path=path, kind=algorithm: hash_file(path, name=path.name, algorithm=kind))
                for path in files
            )
            for algorithm in ("xxh3_128", "sha256")
        },
    }


def main(hidden: int, layers: int) -> None:
    """Measure and print."""
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=0, world_size=1)
        run = tiny_run.TinyRun(tiny_run.Shape(hidden=hidden, layers=layers))
        parameters = sum(each.numel() for each in run.model[0].parameters())
        rows = measured(run, place)
        size = sum(path.stat().st_size for path in Path(place, "sync").glob("iter_*/*.distcp"))
    print(
        f"{parameters / 1e6:.1f} M parameters, {size / 2**30:.2f} GiB on disk, {tiny_run.SEQ * 8} tokens a step; "
        f"load average {before:.1f} before and {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores"
    )
    print(f"{'':44}{'seconds':>9}{'of a step':>11}")
    for name, value in rows.items():
        print(f"{name:44}{value:9.3f}{value / rows['step']:11.3f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    main(*(int(each) for each in (sys.argv[1:] or ["1024", "5"])))
    dist.destroy_process_group()
