"""Megatron-LM's own `pretrain_gpt.py` on a CPU, with and without `mb_guard.install()`, on three faults.

    python pretrain_gpt.py MEGATRON_LM/pretrain_gpt.py

Each fault is run three times: without the guard, with it, and in another way that the fault does not affect and that
has the same numbers. MEGATRON_LM is a checkout at core_v0.19.0; the package megatron is the installed one.
"""

import os
import re
import runpy
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

MODEL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 --mock-data --vocab-size 200 "
    "--tokenizer-type NullTokenizer --split 99,1,0 --micro-batch-size 2 --global-batch-size 4 --lr 1e-3 "
    "--log-interval 1 --eval-iters 0 --eval-interval 100 --seed 3"
)
EXPERTS = (
    "--num-experts 4 --moe-router-topk 2 --moe-router-load-balancing-type global_aux_loss "
    "--moe-aux-loss-coeff 0.5 --moe-token-dispatcher-type alltoall --disable-bias-linear --train-iters 3"
)
DOCUMENTS = "--reset-attention-mask --train-iters 3"
DECAY = "--train-iters 12 --lr-decay-iters 12 --lr-decay-style WSD --lr-wsd-decay-iters 6"
RESUME = DECAY.replace("iters 6", "iters 3") + " --use-checkpoint-opt-param-scheduler"


def main(script: str) -> None:
    """Print the numbers of the last step of each run."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "global_aux_loss, two data-parallel ranks": (
                ("without", 2, EXPERTS),
                ("guarded", 2, EXPERTS),
                ("without, coefficient doubled", 2, f"{EXPERTS} --moe-aux-loss-coeff 1.0"),
            ),
            "a window of 64 over documents in 64 tokens": (
                ("without", 1, f"{DOCUMENTS} --window-size 64,0"),
                ("guarded", 1, f"{DOCUMENTS} --window-size 64,0"),
                ("no window", 1, DOCUMENTS),
            ),
            "resume in the decay phase of WSD": (
                ("not interrupted", 1, f"{DECAY} --save {folder} --save-interval 8"),
                ("without", 1, f"{RESUME} --load {folder} --ckpt-step 8"),
                ("guarded", 1, f"{RESUME} --load {folder} --ckpt-step 8"),
            ),
        }
        for title, cases in runs.items():
            sys.stdout.write(f"{title}\n")
            for name, ranks, flags in cases:
                sys.stdout.write(
                    f"  {name:30} {last_step(script, not name.startswith('without'), ranks, flags)}\n"
                )


def last_step(script: str, guarded: bool, ranks: int, flags: str) -> str:
    """Run Megatron-LM to its end and return what it prints of the last step."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [sys.executable, *launcher, __file__, script, *MODEL.split(), *flags.split()],
        env={**os.environ, "MB_GUARD": "" if guarded else "off", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    line = [line for line in done.stdout.splitlines() if re.search(r" iteration +\d+/", line)][-1]
    return ", ".join(re.findall(r"(?:learning rate|lm loss|grad norm): [^ ]+", line))


def pretrain(script: str, flags: list[str]) -> None:
    """Run `pretrain_gpt.py` in this process."""
    import mb_guard  # noqa: PLC0415
    import mb_host  # noqa: PLC0415

    mb_host.install()  # instead of a GPU
    mb_guard.install()
    import torch  # noqa: PLC0415
    from megatron.training import initialize, training  # noqa: PLC0415

    from mb_host.megatron.megatron_lm import HOST_FLAGS, set_default_environment  # noqa: PLC0415

    set_default_environment()
    initialize._compile_dependencies = torch.distributed.barrier  # the wheel contains the dataset helpers
    training.initialize_megatron = partial(initialize.initialize_megatron, allow_no_cuda=True)
    sys.path.append(str(Path(script).parent))  # gpt_builders.py; last: megatron is the installed package
    sys.argv = [script, *HOST_FLAGS, *flags]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        pretrain(sys.argv[1], sys.argv[2:])
