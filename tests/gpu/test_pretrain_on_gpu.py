"""What must be checked on a GPU: ten steps with each kind of layers and overlaps, and an exact resume."""

from importlib.util import find_spec

import pytest
import torch
from runs import losses, train_here

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
needs_transformer_engine = pytest.mark.skipif(
    find_spec("transformer_engine") is None, reason="Transformer Engine is not installed"
)
TEN_STEPS = ["train.train_iters=10", "checkpoint.save_interval=5", "validation.eval_interval=null"]
DETERMINISTIC = ["model.deterministic_mode=true", "model.cross_entropy_loss_fusion=false"]


def learns(out) -> bool:
    steps = losses(out)
    return list(steps) == list(range(1, 11)) and steps[10] < steps[1]


def test_local_layers_learn(overrides, tmp_path):
    train_here([*overrides, *TEN_STEPS, "model.transformer_impl=local"], tmp_path / "run")
    assert learns(tmp_path / "run")
    assert "Megatron's local layers" in (tmp_path / "run" / "log.txt").read_text()


@needs_transformer_engine
def test_transformer_engine_layers_learn_in_bf16(overrides, tmp_path):
    words = [*overrides, *TEN_STEPS, "model.hidden_size=64", "mixed_precision=bf16_mixed"]
    train_here(words, tmp_path / "run")
    assert learns(tmp_path / "run")
    assert "Transformer Engine layers" in (tmp_path / "run" / "log.txt").read_text()


def test_the_distributed_optimizer_with_both_overlaps_learns(overrides, tmp_path):
    overlaps = ["ddp.use_distributed_optimizer=true", "comm_overlap.overlap_grad_reduce=true"]
    overlaps += ["comm_overlap.overlap_param_gather=true", "model.transformer_impl=local"]
    train_here([*overrides, *TEN_STEPS, *overlaps], tmp_path / "run")
    assert learns(tmp_path / "run")


def test_a_stopped_run_goes_on_bit_for_bit(overrides, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    words = [*overrides, *TEN_STEPS, *DETERMINISTIC, "model.transformer_impl=local"]
    train_here(words, tmp_path / "straight")
    train_here([*words, "train.exit_interval=5"], tmp_path / "run")
    train_here(words, tmp_path / "run", resume_with_changes=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "straight")
