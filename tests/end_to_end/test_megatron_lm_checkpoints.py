"""Checkpoints of Megatron-LM's own training code resume here, and ours resume there, at the losses of each."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy
import pytest
from megatron_lm_flags import FLAGS, HOST, as_printed
from runs import losses, mb, mb_here

from mb_data import IndexedWriter

SCRIPT = Path(__file__).parents[1] / "megatron_lm_pretrain.py"
STEP = re.compile(r" iteration +(\d+)/.* lm loss: (\S+)")


def their_run(flags, *, ranks):
    """Run Megatron-LM to its end; return the loss of each step, as it prints it, and the whole output."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return {int(step): loss for step, loss in STEP.findall(done.stdout)}, done.stdout


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return the prefix of a corpus of random documents."""
    prefix = tmp_path_factory.mktemp("corpus") / "corpus"
    random = numpy.random.default_rng(1)
    with IndexedWriter(prefix, dtype=numpy.uint16) as writer:
        for _ in range(120):
            writer.add_document(random.integers(0, 63, size=int(random.integers(20, 90))).tolist())
    return prefix


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    """Return a function that runs Megatron-LM once for the same arguments: flags, losses by step, and checkpoints."""

    @cache
    def run(ranks, more):
        folder = tmp_path_factory.mktemp("theirs")
        flags = [*FLAGS.split(), *HOST.split(), *more.split(), "--data-cache-path", str(folder / "cache")]
        stored = ["--data-path", str(corpus), "--save", str(folder / "saved"), "--save-interval", "3"]
        found, _ = their_run([*flags, *stored, "--log-throughput"], ranks=ranks)
        assert list(found) == list(range(1, 10))
        return flags, found, folder / "saved"

    return run


CASES = {
    "one rank": (1, ""),
    "two ranks with the distributed optimizer": (2, "--use-distributed-optimizer"),
    "two ranks with tensor parallelism": (2, "--tensor-model-parallel-size 2"),
    "one rank, legacy layout": (1, "--ckpt-format torch"),
}
ALWAYS = "one rank"


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        pytest.param(*case, id=name, marks=[] if name == ALWAYS else pytest.mark.matrix)
        for name, case in CASES.items()
    ],
)
def test_a_run_of_theirs_resumes_here_and_there_again(corpus, undisturbed, tmp_path, ranks, more):
    flags, expected, theirs = undisturbed(ranks, more)
    flags = [*flags, "--data-path", str(corpus)]
    settings, ours = tmp_path / "run.yaml", tmp_path / "ours"
    done = mb("config", "import-args", *flags, f"--out={settings}")
    assert done.returncode == 0, done.stderr
    processes = [f"--nproc={ranks}"] if ranks > 1 else []
    load = (f"checkpoint.load={theirs}", "checkpoint.ckpt_step=3", "train.exit_interval=6")
    load = (*load, "checkpoint.ckpt_format=torch_dist")  # the legacy layout is read, not written
    done = mb("pretrain", str(settings), *load, *processes, f"--out={ours}")
    assert done.returncode == 0, done.stderr
    assert f"resumed from {theirs}/iter_0000003 at step 3" in done.stdout
    # dropout is on: weights, optimizer, schedule, data and random states continue exactly
    assert as_printed(losses(ours)) == {step: expected[step] for step in (4, 5, 6)}

    words = (
        "gpt_tiny",
        f"checkpoint.load={theirs}",
        "checkpoint.use_checkpoint_args=true",
        "--section=model",
    )
    shown = mb_here("config", "show", *words, f"--out={tmp_path / 'other'}")
    assert {"hidden_size: 64", "num_layers: 2", "vocab_size: 64"} <= {
        line.strip() for line in shown.stdout.splitlines()
    }

    again, printed = their_run(
        [*flags, "--load", str(ours / "checkpoints"), "--use-checkpoint-args", "--ckpt-format", "torch_dist"],
        ranks=ranks,
    )
    resumed, _ = their_run([*flags, "--load", str(theirs), "--ckpt-step", "6"], ranks=ranks)
    assert again == resumed  # of their own resume: its losses are not those of the undisturbed run
    assert list(again) == [7, 8, 9]
    assert "Setting padded_vocab_size to 64 from checkpoint" in printed


HYBRID = (
    "--hybrid-layer-pattern M*-M --num-layers 4 --mamba-num-heads 4 --mamba-head-dim 32 --mamba-state-dim 16 "
    "--mamba-num-groups 2 --position-embedding-type none"
)
RUNS = {
    "one rank": (1, ""),
    "tensor parallel": (2, "--tensor-model-parallel-size 2"),
    "pipeline parallel": (2, "--pipeline-model-parallel-size 2"),
    "data parallel": (2, "--use-distributed-optimizer"),
    "hybrid": (1, HYBRID),
    "hybrid, tensor parallel": (2, f"{HYBRID} --tensor-model-parallel-size 2"),
}


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        pytest.param(*case, id=name, marks=[] if name == ALWAYS else pytest.mark.matrix)
        for name, case in RUNS.items()
    ],
)
def test_a_run_in_progress_is_taken_over_from_its_folder(corpus, undisturbed, tmp_path, ranks, more):
    flags, expected, theirs = undisturbed(ranks, more)
    ours, alone = tmp_path / "ours", tmp_path / "alone"
    (theirs / "latest_checkpointed_iteration.txt").write_text("6")
    script = tmp_path / "pretrain.sh"
    script.write_text(
        f"ARGS=({' '.join(flags)})\nexport NCCL_ALGO=Ring\n"
        f"torchrun --nproc_per_node {ranks} pretrain_gpt.py ${{ARGS[@]}} --data-path $1 --save {theirs} "
        "--save-interval 4\n"
    )
    processes = (f"--nproc={ranks}",) if ranks > 1 else ()
    options = (f"--from-megatron-lm={theirs}", f"--script={script}", f"--set=1={corpus}", f"--out={ours}")
    first = mb("pretrain", *options, *processes, "train.exit_interval=7")
    assert first.returncode == 0, first.stdout + first.stderr
    printed = [
        line.removeprefix("from Megatron-LM: ")
        for line in first.stdout.splitlines()
        if line.startswith("from Megatron-LM: ")
    ]
    assert printed == [
        f"weights, optimizer and position: {theirs}/iter_0000006, until {ours} has a checkpoint of its own",
        f"settings: {script}, written to {ours}/megatron_lm.yaml",
        "tokenizer: NullTokenizer",
        f"data: {corpus}",
        "differs: checkpoint.save_interval: 4 in pretrain.sh, 3 in the checkpoint",
        "differs: dist.distributed_backend: nccl in pretrain.sh, gloo in the checkpoint",
        "differs: logger.log_throughput: False in pretrain.sh, True in the checkpoint",
        f"checkpoints of this run: {ours}/checkpoints; {theirs} is not changed",
    ]
    assert f"resumed from {theirs}/iter_0000006 at step 6" in first.stdout
    second = mb("pretrain", *options, *processes, "train.exit_interval=7")
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"resumed from {ours}/checkpoints/iter_0000007 at step 7" in second.stdout
    assert as_printed(losses(ours)) == {step: expected[step] for step in (7, 8, 9)}
    assert (ours / "checkpoints/latest_checkpointed_iteration.txt").read_text().strip() == "9"
    assert (theirs / "latest_checkpointed_iteration.txt").read_text() == "6"

    done = mb("pretrain", f"--from-megatron-lm={theirs}", f"--out={alone}", *processes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "from Megatron-LM: settings: the arguments in the checkpoint" in done.stdout
    assert as_printed(losses(alone)) == as_printed(losses(ours))
