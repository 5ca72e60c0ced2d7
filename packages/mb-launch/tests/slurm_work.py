"""A program that Slurm or NeMo-Run starts on every rank: counts steps, saves on SIGTERM, and resumes.

Usage: slurm_work.py FOLDER STEPS SECONDS
"""

import os
import signal
import sys
import time
from pathlib import Path

from mb_launch import read_world


def main():
    folder, steps, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    world = read_world(os.environ)
    state = folder / f"state_{world.rank}"
    value, step = map(float, state.read_text().split()) if state.exists() else (1.0, 0)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    node = os.environ.get("SLURMD_NODENAME", "this machine")
    print(f"rank {world.rank} of {world.world_size} on {node} at step {int(step)}", flush=True)
    while step < steps and not stopped:
        time.sleep(seconds)
        value, step = value * 1.0001 + world.rank, step + 1
    state.write_text(f"{value!r} {int(step)}")
    print(f"rank {world.rank} ends at step {int(step)}", flush=True)


if __name__ == "__main__":
    main()
