"""The table of layouts whose resume is proven exact: `nox -s verify` runs it; words after it choose rows.

The text makes epochs of 77 sequences: with batches of eight the tenth step takes the last of one and the first of the
next, so that a run is cut in the middle of the first epoch and continues into the second, unless its row differs.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TP2, PP2 = "model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2"
SP, VPP2 = "model.sequence_parallel=true", "model.virtual_pipeline_model_parallel_size=2"
DROPOUT = ["model.hidden_dropout=0.1", "model.attention_dropout=0.1"]
OVERLAPPED = [
    "ddp.use_distributed_optimizer=true",
    "optimizer.use_distributed_optimizer=true",
    "ddp.overlap_grad_reduce=true",
    "ddp.overlap_param_gather=true",
]
BACKGROUND = ["checkpoint.async_save=true", "checkpoint.async_strategy=mcore"]
FSDP = [
    "ddp.use_megatron_fsdp=true",
    "ddp.data_parallel_sharding_strategy=optim_grads_params",
    "checkpoint.ckpt_format=fsdp_dtensor",
]
LATER = ["--kill", "--steps=16"]
"""Steps enough for a writer process that is slow to start."""
EXPERTS = [
    "model.expert_model_parallel_size=2",
    "model.num_moe_experts=4",
    "model.moe_token_dispatcher_type=alltoall",
    "model.moe_router_topk=2",
    "model.moe_ffn_hidden_size=64",
]
SEVENS = ["train.global_batch_size=7", "train.micro_batch_size=1"]
RAMP_UP = ["train.rampup_batch_size=[4,4,32]"]

ROWS: dict[str, tuple[int, list[str]]] = {
    "one process, dropout": (1, DROPOUT),
    "one process, killed, asynchronous save": (1, [*BACKGROUND, *LATER]),
    "one process, dropout, cut in the second epoch": (1, [*DROPOUT, "--steps=16", "--cut=13"]),
    "one process, dropout, the first step after the cut goes across an epoch's end": (
        1,
        [*DROPOUT, "--cut=9"],
    ),
    "one process, dropout, cut where an epoch ends": (1, [*DROPOUT, *SEVENS, "--steps=14", "--cut=11"]),
    "DP2, dropout, ramp-up": (2, [*DROPOUT, *RAMP_UP]),
    "DP2, distributed optimizer, overlaps, dropout": (2, [*OVERLAPPED, *DROPOUT]),
    "DP2, distributed optimizer, asynchronous save, killed": (2, [*OVERLAPPED[:2], *BACKGROUND, *LATER]),
    "DP2, Megatron-FSDP, overlaps, dropout, killed": (2, [*FSDP, *OVERLAPPED[2:], *DROPOUT, "--kill"]),
    "TP2, sequence parallel, dropout": (2, [TP2, SP, *DROPOUT]),
    "PP2, killed": (2, [PP2, "--kill"]),
    "PP2, VPP2, dropout": (2, [PP2, VPP2, *DROPOUT]),
    "EP2": (2, EXPERTS),
    "CP2": (2, ["model.context_parallel_size=2"]),
    "TP2 x PP2, dropout": (4, [TP2, PP2, *DROPOUT]),
    "DP2, then 1, then 2 (what is read)": (2, ["--resume-nproc=1,2", "--cut=4"]),
}
"""Name -> processes, and what differs from the recipe."""

LARGER = [
    "model.hidden_size=64",
    "dataset.seq_length=128",
    "model.seq_length=128",
    "train.micro_batch_size=4",
]
"""Tensors that torch and MKL divide among threads."""
UNDER_LOAD = {
    "under load: one process, two threads": (1, LARGER),
    "under load: DP2, two threads": (2, LARGER),
    "under load: TP2, two threads": (2, [*LARGER, TP2]),
    "under load: PP2, two threads": (2, [*LARGER, PP2]),
}
"""Rows with two threads a process, while other processes keep every processor busy twice over.

They are short: kernels are chosen in the first step after a start, and threads that wait for each other are slow.
"""
ROWS |= UNDER_LOAD

WORDS = [
    "the",
    "loop",
    "trains",
    "a",
    "small",
    "model",
    "on",
    "text",
    "while",
    "tokens",
    "flow",
    "into",
    "batches",
]


def recipe(folder: Path) -> list[str]:
    """Write a text of few epochs, and return what makes gpt_tiny small."""
    words = random.Random(1)
    (folder / "text").mkdir()
    for number in range(20):
        (folder / "text" / f"{number}.txt").write_text(" ".join(words.choice(WORDS) for _ in range(60)))
    return [
        f"dataset.sources=[{folder / 'text'}]",
        f"dataset.cache_dir={folder / 'cache'}",
        "dataset.vocab_size=280",
        "dataset.validation_fraction=0.2",
        "dataset.test_fraction=0.2",
        "dataset.seq_length=32",
        "model.seq_length=32",
        "model.num_layers=4",
        "model.hidden_size=32",
        "model.ffn_hidden_size=64",
        "model.num_attention_heads=4",
        "model.num_query_groups=2",
        "train.global_batch_size=8",
        "train.micro_batch_size=2",
        "validation.eval_interval=5",
        "validation.eval_iters=1",
        "scheduler.lr_warmup_iters=2",
    ]


def proven(
    name: str, words: list[str], difference: list[str], processes: int
) -> tuple[str, dict[str, object]]:
    """Run `mb verify-resume`, and return its verdict and its JSON result."""
    length = ["--steps=4", "--cut=2"] if name in UNDER_LOAD else ["--steps=12", "--cut=7"]
    options = [*length, f"--nproc={processes}", "--json"]
    options += [word for word in difference if word.startswith("--")]
    overrides = [*words, *(word for word in difference if not word.startswith("--"))]
    env = {**os.environ, "OMP_NUM_THREADS": "2"} if name in UNDER_LOAD else None
    command = [sys.executable, "-m", "mb_trainer", "verify-resume", *options, "--", *overrides]
    ended = subprocess.run(command, text=True, capture_output=True, check=False, env=env)
    if ended.returncode not in (0, 1, 3) or not ended.stdout:
        return f"FAILED: {ended.stderr.strip()}", {}
    found = json.loads(ended.stdout)
    return "equal" if found["equal"] else f"DIFFERENT, {found['verdict']}: {found}", found


@contextmanager
def busy_processors(processes: int) -> Iterator[None]:
    """Keep every processor busy with other processes of a lower priority while the block runs."""
    burn = [sys.executable, "-c", "import os; os.nice(5)\nwhile True: pass"]
    started = [subprocess.Popen(burn) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main(chosen: list[str]) -> int:
    """Print a line per row; return how many are not equal."""
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="mb-verify-rows-") as folder:
        words = recipe(Path(folder))
        for name, (processes, difference) in ROWS.items():
            if chosen and not any(part in name for part in chosen):
                continue
            began = time.monotonic()
            busy = 2 * (os.cpu_count() or 1) if name in UNDER_LOAD else 0
            with busy_processors(busy):
                verdict, found = proven(name, words, difference, processes)
            values = sum(line["values"] for line in found.get("compared", {}).values())  # type: ignore[attr-defined]
            seconds = time.monotonic() - began
            print(f"| {name} | {processes} | {values:,} | {verdict} | {seconds:.0f} s |", flush=True)
            wrong += verdict != "equal"
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
