"""Benchmark of the start of `mb pretrain` to the first step, next to the imports of torch and Megatron Core alone.

Each round starts two processes in turn: one that imports the modules of torch and of Megatron Core that a run of
`gpt_tiny` imports, and one that runs its first step, without a save and an evaluation. The corpus and the compiled
modules are cached by a run before the first round. Minimum and median of the processor time of a process, which other
programs on the machine change little, and of its elapsed time.

    python meta/benchmarks/bench_start.py [--rounds 5]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IMPORTS = """
import mb_host
mb_host.install()
import sys
from importlib import import_module
for name in open(sys.argv[1]).read().split():
    import_module(name)
"""
FOREIGN = ("torch", "megatron", "numpy")
LIST_MODULES = """
import atexit, sys
def write():
    with open({path!r}, "w") as stream:
        stream.write("\\n".join(name for name in list(sys.modules) if name.partition(".")[0] in {foreign!r}))
atexit.register(write)
from mb_trainer.__main__ import main
main()
"""
ARGUMENTS = (
    "pretrain",
    "gpt_tiny",
    "train.train_iters=1",
    "scheduler.lr_warmup_iters=0",
    "validation.eval_interval=null",
    "validation.eval_iters=0",
    "checkpoint.save_interval=null",
    "checkpoint.save=null",
)


def measure(command, folder):
    """Return the processor time and the elapsed time of a process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)[:200]}: failed\n{errors[-2000:]}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder, modules = Path(name), Path(name, "modules.txt")
        listing = LIST_MODULES.format(path=str(modules), foreign=FOREIGN)
        measure([sys.executable, "-c", listing, *ARGUMENTS, "--out", "first"], folder)
        taken = {"imports alone": [], "mb pretrain": [], "import mb_host": []}
        for number in range(rounds):
            taken["import mb_host"].append(measure([sys.executable, "-c", "import mb_host"], folder))
            taken["imports alone"].append(measure([sys.executable, "-c", IMPORTS, str(modules)], folder))
            run = [sys.executable, "-m", "mb_trainer", *ARGUMENTS, "--out", f"run{number}"]
            taken["mb pretrain"].append(measure(run, folder))
    print(f"{'':16}{'processor s: min':>17}{'median':>8}{'elapsed s: min':>16}{'median':>8}")
    for row, found in taken.items():
        processor, elapsed = zip(*found, strict=True)
        print(
            f"{row:16}{min(processor):>17.2f}{statistics.median(processor):>8.2f}"
            f"{min(elapsed):>16.2f}{statistics.median(elapsed):>8.2f}"
        )
    beyond = [after[0] - before[0] for before, after in zip(*list(taken.values())[:2], strict=True)]
    print(f"beyond the imports: {min(beyond):.2f} to {max(beyond):.2f} s of processor")


if __name__ == "__main__":
    main()
