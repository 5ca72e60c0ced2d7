"""Seconds from a fault to the next step, with restarts by torchrun and in-process ones: `python bench_restart.py`.

Two ranks train a small model on the CPU (the training of tests/restarted_training.py) and save after each step. A
launcher starts new interpreters, which import torch; a trainer imports more, such as Megatron Core. Needs NVRx.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

FAULTS = {
    "a rank raises": (1, "raise", 3),
    "a rank is killed": (1, "kill", 3),
    "rank 0 is killed": (0, "kill", 3),
    "a rank hangs": (1, "stop", 3),
}
SOFT_TIMEOUT, HARD_TIMEOUT = 10.0, 15.0
COLLECTIVE_TIMEOUT = 15.0
"""With restarts by the launcher, a rank that hangs is noticed by the timeout of a collective."""


def worker(folder: Path, fault: tuple[int, str, int], in_process: bool) -> int:
    """Train in one process of torchrun; the fault happens once."""
    import torch.distributed as dist  # noqa: PLC0415 (a keeper needs no torch)
    from restarted_training import train  # noqa: PLC0415

    from mb_resilience import InProcessRestartConfig  # noqa: PLC0415
    from mb_resilience.restarts.rank_keeper import keep_run_alive  # noqa: PLC0415

    def attempt(mine) -> None:
        first = not (folder / "fault").exists()
        train(mine, folder, {mine.number: fault} if first else {}, timeout=COLLECTIVE_TIMEOUT)

    if not in_process:
        start = os.environ["TORCHELASTIC_RESTART_COUNT"]
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        store = dist.PrefixStore(start, store)
        attempt(SimpleNamespace(rank=rank, world_size=world_size, number=int(start), store=store, faults=()))
        return 0
    section = InProcessRestartConfig(
        enabled=True,
        granularity="rank",
        active_world_size=2,
        max_iterations=3,
        soft_timeout=SOFT_TIMEOUT,
        hard_timeout=HARD_TIMEOUT,
    )

    def run() -> int:
        from mb_resilience.restarts.nvrx import run_with_restarts  # noqa: PLC0415

        run_with_restarts(attempt, section)
        return 0

    return keep_run_alive(run, section)


def measure(folder: Path, fault: tuple[int, str, int], *, in_process: bool) -> tuple[str, dict[int, float]]:
    """Run under torchrun; return the cells of the table, and the losses."""
    folder.mkdir()
    torchrun = [
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={3 if in_process else 2}",
        "--max-restarts=2",
    ]
    words = [__file__, str(folder), json.dumps(fault), str(int(in_process))]
    with (folder / "output.txt").open("w") as output:
        subprocess.run([sys.executable, "-m", *torchrun, *words], check=True, stdout=output, stderr=output)
    rows = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    if fault[1] == "none":
        return "", {row["step"]: row["loss"] for row in rows}
    happened = float((folder / "fault").read_text())
    first = next(row for row in rows if row["attempt"] > 0)
    cells = f"{first['time'] - happened:.1f} | {fault[2] - first['step'] + 1}"
    return cells, {row["step"]: row["loss"] for row in rows}


def main() -> None:
    """Print the table."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        undisturbed = measure(root / "undisturbed", (0, "none", -1), in_process=False)[1]
        print(
            "| fault | launcher: s to next step | steps lost | bit for bit | in-process: s | steps lost | bit for bit |"
        )
        print("|---|---|---|---|---|---|---|")
        for number, (text, fault) in enumerate(FAULTS.items()):
            cells = []
            for in_process in (False, True):
                found, losses = measure(root / f"{number}{in_process}", fault, in_process=in_process)
                cells.append(f"{found} | {'yes' if losses == undisturbed else 'no'}")
            print(f"| {text} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(worker(Path(sys.argv[1]), tuple(json.loads(sys.argv[2])), sys.argv[3] == "1"))
    main()
