"""Benchmark of one check from a cold start, compared with an empty Python program.

Run: python benchmarks/bench_check.py
"""

import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

CONFIG = """\
model: {num_layers: 32, num_attention_heads: 32, seq_length: 4096, tensor_model_parallel_size: 2}
train: {train_iters: 1000, global_batch_size: 512, micro_batch_size: 1}
optimizer: {lr: 3.0e-4}
scheduler: {lr_warmup_iters: 10}
dataset: null
logger: null
tokenizer: null
checkpoint: null
"""


def seconds(*command: str) -> tuple[float, float]:
    """Return the minimum wall time and the minimum CPU time of five runs of a command."""
    wall_times, cpu_times = [], []
    for _ in range(5):
        start, before = time.perf_counter(), cpu_seconds()
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        wall_times.append(time.perf_counter() - start)
        cpu_times.append(cpu_seconds() - before)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
    return min(wall_times), min(cpu_times)


def cpu_seconds() -> float:
    """Return the CPU seconds of all commands so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print seconds, and the ratio to an empty program."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.yaml")
        file.write_text(CONFIG, encoding="utf-8")
        check = (
            "-m",
            "mb_config",
            "check",
            str(file),
            "--world-size",
            "64",
        )
        rows = {
            "an empty program": ("-c", ""),
            "mb-config check FILE": check,
            "mb-config check FILE KEY=VALUE": (*check, "optimizer.lr=1e-4"),
        }
        if find_spec("mb_trainer") is not None:
            rows["mb check"] = ("-m", "mb_trainer", "check", "gpt_tiny")
        _, empty = seconds(*rows["an empty program"])
        print(f"{'':<32}{'seconds':>8}{'CPU seconds':>14}{'ratio':>8}")
        for name, command in rows.items():
            wall, work = seconds(*command)
            print(f"{name:<32}{wall:>8.2f}{work:>14.2f}{work / empty:>8.0f}")


if __name__ == "__main__":
    main()
