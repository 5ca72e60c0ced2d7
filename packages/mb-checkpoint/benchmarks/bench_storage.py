"""Copies to S3 compared with torch.distributed.checkpoint's save to S3, in turn, in about a minute.

One process, a network with AdamW on the CPU, and an S3 server on this machine (moto, which one core serves). Printed
are the time that a save blocks the loop, the time until the checkpoint is in the storage, and the duration of a step
while a copy is made. `file copy`: the same bytes with s3fs alone, in as many threads.

Usage: python bench_storage.py [WIDTH]
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.state_dict import get_state_dict

from mb_checkpoint import TorchCheckpointer
from mb_checkpoint.storage.checkpoints import THREADS

SAVES = 3
PORT = 5543


def main(width: int) -> None:
    """Measure and print."""
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{PORT}"
    command = [sys.executable, "-c", "from moto.server import main; main()", "-p", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_server()
        rows = _measure(width)
    finally:
        server.kill()
    size = rows.pop("GiB")[0]
    print(f"{size:.2f} GiB, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    for name, values in rows.items():
        shown = ", ".join(f"{value:.2f}" for value in values)
        print(f"{name:45} median {statistics.median(values):6.2f} s   ({shown})")


def _await_server() -> None:
    for _ in range(100):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/moto-api/").close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("moto did not start: install moto[s3,server]")


def _measure(width: int) -> dict[str, list[float]]:
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(256, width)
    rows: dict[str, list[float]] = {}

    def note(name: str, began: float) -> None:
        rows.setdefault(name, []).append(time.perf_counter() - began)

    def step() -> float:
        began = time.perf_counter()
        model(batch).square().mean().backward()
        optimizer.step()
        return time.perf_counter() - began

    step()
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    files.mkdir("bench")
    with tempfile.TemporaryDirectory() as place:
        state = {"model": model, "optimizer": optimizer}
        ours = TorchCheckpointer(
            f"{place}/ours", state, most_recent_k=1, storage="s3://bench/ours", log=lambda _line: None
        )
        ours.load()
        for number in range(1, SAVES + 1):
            rows.setdefault("step", []).append(step())
            began = time.perf_counter()
            ours.save(number)
            note("TorchCheckpointer: save blocks for", began)
            rows.setdefault("step while it is copied", []).append(step())
            ours._saver._mirror._uploader.wait()  # type: ignore[union-attr]
            note("TorchCheckpointer: in the storage after", began)
            folder = Path(place, "ours", f"iter_{number:07d}")
            began = time.perf_counter()
            with ThreadPoolExecutor(THREADS) as pool:
                list(
                    pool.map(
                        lambda file: files.put_file(str(file), f"bench/copy/{file.name}"), folder.iterdir()
                    )
                )
            note("file copy", began)
            weights, moments = get_state_dict(model, optimizer)
            began = time.perf_counter()
            writer = FsspecWriter(f"s3://bench/theirs/{number}")
            dcp.save({"model": weights, "optimizer": moments}, storage_writer=writer)
            note("torch save to S3: blocks for", began)
        rows["GiB"] = [sum(file.stat().st_size for file in folder.iterdir()) / 2**30]
        ours.close()
        shutil.rmtree(f"{place}/ours")
        began = time.perf_counter()
        again = TorchCheckpointer(f"{place}/ours", state, storage="s3://bench/ours", log=lambda _line: None)
        again.load()
        note("TorchCheckpointer: fetch and load", began)
        began = time.perf_counter()
        reader = FsspecReader(f"s3://bench/theirs/{SAVES}")
        dcp.load({"model": weights, "optimizer": moments}, storage_reader=reader)
        note("torch load from S3", began)
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
