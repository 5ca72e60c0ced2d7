"""Fully sharded runs in the main job, torch's and Megatron's: losses of plain data parallelism, and checkpoints."""

import os
from pathlib import Path

import pytest
from runs import losses, metrics, rank_pool

FSDP2 = ["dist.use_torch_fsdp2=true"]
MEGATRON = [
    "ddp.use_megatron_fsdp=true",
    "ddp.data_parallel_sharding_strategy=optim_grads_params",
    "checkpoint.ckpt_format=fsdp_dtensor",
]
STEPS = [
    "train.train_iters=6",
    "scheduler.lr_decay_iters=6",
    "scheduler.override_opt_param_scheduler=true",
    "validation.eval_interval=null",
    "validation.eval_iters=0",
    "checkpoint.save_interval=3",
]


@pytest.fixture(scope="module")
def ranks():
    """Pool of two ranks, which import once for all runs."""
    with rank_pool(2) as pool:
        yield pool


def train_on_this_rank(words: list[str], out: str) -> None:
    """Train as a process of a job that has its groups already."""
    from mb_trainer import pretrain
    from mb_trainer.requests import read_request

    request = read_request(words)
    pretrain(
        request.config,
        name=request.name,
        out=Path(out),
        provenance=request.provenance,
        environment=dict(os.environ),
    )


def test_fsdp2_trains_saves_and_resumes(ranks, overrides, tmp_path):
    words = [*overrides, *STEPS]
    half = [f"checkpoint.load={tmp_path}/half/checkpoints"]

    def run(name, *more):
        ranks.run(train_on_this_rank, [*words, *more], str(tmp_path / name))
        return losses(tmp_path / name)

    plain = run("plain")
    sharded = run("half", *FSDP2, "train.train_iters=3")
    sharded |= run("rest", *FSDP2, *half)
    back = run("back", *half)
    assert sharded == pytest.approx(plain, abs=1e-5, rel=0)
    assert back == pytest.approx({step: plain[step] for step in (4, 5, 6)}, abs=1e-5, rel=0)


def test_megatron_fsdp_trains_saves_resumes_and_is_sampled(ranks, overrides, tmp_path):
    """Losses and norms of weights as under plain data parallelism; resumed to the last bit; read by one process."""
    from mb_trainer.sampling import sample_run

    words = [*overrides, *STEPS, "logger.log_params_norm=true", "logger.log_interval=1"]

    def run(name, *more):
        ranks.run(train_on_this_rank, [*words, *more], str(tmp_path / name))
        return losses(tmp_path / name), [row["params-norm"] for row in metrics(tmp_path / name)]

    plain, plain_norms = run("plain")
    whole, norms = run("whole", *MEGATRON)
    half, _ = run("half", *MEGATRON, "train.train_iters=3")
    rest, _ = run("rest", *MEGATRON, f"checkpoint.load={tmp_path}/half/checkpoints")
    assert whole == pytest.approx(plain, abs=1e-5, rel=0)
    assert norms == pytest.approx(plain_norms, abs=1e-4, rel=0)
    assert half | rest == whole
    text = sample_run(tmp_path / "whole", prompts=["the"], tokens=3, temperature=0.0, seed=1)
    assert next(text) == (0, "the")
