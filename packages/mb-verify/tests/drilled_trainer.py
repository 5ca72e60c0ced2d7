"""A trainer of plain Python on several processes, which resumes from its newest valid checkpoint.

python drilled_trainer.py OUT [--nproc N] [--steps N] [--flaw FLAW]

Flaws: `loses` forgets a part of its state; `no-verify` loads a damaged checkpoint; `gives-up` does not start in a
folder that has a run; `random` differs in each run.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import mb_verify

SAVE_EVERY = 2


def load(folder, *, verify):
    """Return step and value of the newest valid checkpoint."""
    found = sorted(folder.glob("step_*/state.json"), reverse=True)
    for file in found:
        text, _, checksum = file.read_text(errors="replace").partition("\n")
        if not verify or str(crc32(text.encode())) == checksum:
            state = json.loads(text)
            return state["step"], state["value"]
    return 0, 1.0


def save(folder, step, value):
    """Write a checkpoint, and rename it when it is complete."""
    text = json.dumps({"step": step, "value": value})
    unfinished = folder / f".step_{step:07}"
    unfinished.mkdir(parents=True, exist_ok=True)
    (unfinished / "state.json").write_text(f"{text}\n{crc32(text.encode())}")
    shutil.rmtree(folder / f"step_{step:07}", ignore_errors=True)
    unfinished.rename(folder / f"step_{step:07}")


class Model:
    """A forward pass with hooks, as a torch module has them."""

    def __init__(self):
        self.hooks = []

    def register_forward_hook(self, hook):
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def __call__(self, value):
        output = Number(value)
        for hook in self.hooks:
            output = hook(self, (), output)
        return float(output)


class Number(float):
    def is_floating_point(self):
        return True


def train(options, rank):  # noqa: C901 - a trainer, read from top to bottom
    """Train one rank."""
    stopped = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    checkpoints = options.out / "checkpoints"
    if options.flaw == "gives-up" and checkpoints.exists():
        sys.exit("Error: the folder is in use")
    begun, value = load(checkpoints, verify=options.flaw != "no-verify")
    if begun and options.flaw == "loses":
        value = round(value, 2)
    if options.flaw == "random":
        value += random.random()
    faults = [
        each
        for each in mb_verify.callbacks_from_environment(os.environ, rank=rank)
        if hasattr(each, "_is_target")
    ]
    record = mb_verify.record_file_from_environment(os.environ, rank=rank)
    context = SimpleNamespace(model=Model(), state=SimpleNamespace(train_state=SimpleNamespace(step=begun)))
    if record:
        record.start(begun)
    for step in range(begun + 1, options.steps + 1):
        for fault in faults:
            fault.on_train_step_start(context)
        time.sleep(0.04)
        value = context.model(value * 1.1 + 1 / (3 * step))
        if value != value:
            sys.exit("Error: the loss is NaN")
        for fault in faults:
            fault.on_train_step_end(context)
        wait_for_others(options, rank, step)
        context.state.train_state.step = step
        if record:
            record.step(step, {"losses: loss": repr(value)})
        if rank == 0 and (step % SAVE_EVERY == 0 or stopped):
            save(checkpoints, step, value)
        if stopped:
            break


def wait_for_others(options, rank, step):
    """Wait until all ranks have computed a step, as a collective would."""
    group = (
        options.out.parent
        / f"{options.out.name}-{os.environ.get('MASTER_PORT', 'group')}-{os.environ.get('GROUP')}"
    )
    group.mkdir(parents=True, exist_ok=True)
    (group / f"{rank}-{step}").touch()
    while not all((group / f"{each}-{step}").exists() for each in range(options.nproc)):
        time.sleep(0.002)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--flaw")
    options = parser.parse_args()
    if options.nproc == 1 or "RANK" in os.environ:
        return train(options, int(os.environ.get("RANK", "0")))
    port = os.environ.get("MASTER_PORT")
    if port is not None:
        sys.exit(f"Error: port {port} is in use")
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, "RANK": str(rank), "GROUP": str(os.getpid())}
        )
        for rank in range(options.nproc)
    ]
    signal.signal(signal.SIGTERM, lambda number, frame: [rank.send_signal(number) for rank in ranks])
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            for rank in ranks:
                rank.kill()
        time.sleep(0.01)
    failed = [rank.returncode for rank in ranks if rank.returncode]
    if failed:
        sys.exit(f"Error: a rank ended with {failed[0]}")
    return None


if __name__ == "__main__":
    main()
