"""Fast settings on a GPU: steps that never wait, fused kernels, saves under graphs, packs, energy, recorders."""

import os
import pickle

import pytest
import torch
from on_gpu import BF16, ENGINE, ON_GPU, TEN_STEPS, learned, needs
from runs import losses, metrics, train_here

from mb_metrics.names import ENERGY, MFU, TFLOPS_PER_DEVICE

pytestmark = [*ON_GPU, ENGINE]
STEPS = [*TEN_STEPS, *BF16, "train.global_batch_size=8", "train.micro_batch_size=4", "logger.log_interval=5"]
SHARDED = ["ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=true"]
PLAIN = ["model.gradient_accumulation_fusion=false", "model.cross_entropy_fusion_impl=native"]
FUSED = [
    "model.gradient_accumulation_fusion=true",
    "model.cross_entropy_loss_fusion=true",
    "model.cross_entropy_fusion_impl=te",
]
GRAPHS = ["model.cuda_graph_impl=transformer_engine", "model.cuda_graph_warmup_steps=2"]
TWO_PERCENT = 0.02


class NeverWait:
    """Callback that makes every synchronization of the host an error between the ends of two steps."""

    def __init__(self, first, last):
        self.steps, self.checked = (first, last), []

    def on_train_step_end(self, context):
        step = context.state.train_state.step
        if self.steps[0] < step <= self.steps[1]:
            self.checked.append(step)
        modes = {self.steps[0]: "error", self.steps[1]: "default"}
        if step in modes:
            torch.cuda.set_sync_debug_mode(modes[step])


@pytest.fixture
def default_mode():
    """Restore the mode, which is that of the process."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("settings", [[], SHARDED, GRAPHS], ids=["plain", "sharded", "layer graphs"])
def test_a_step_never_waits_for_the_gpu(settings, overrides, tmp_path, default_mode):
    never = NeverWait(5, 9)
    words = [*overrides, *STEPS, *settings, "checkpoint.save_interval=null", "logger.log_interval=3"]
    train_here(words, tmp_path / "run", callbacks=(never,))
    assert never.checked == [6, 7, 8, 9]


@needs("fused_weight_gradient_mlp_cuda")
def test_fused_weight_gradients_and_loss_compute_what_the_others_do(overrides, tmp_path):
    train_here([*overrides, *STEPS, *PLAIN], tmp_path / "plain")
    train_here([*overrides, *STEPS, *FUSED], tmp_path / "fused")
    assert learned(tmp_path / "fused")
    assert losses(tmp_path / "fused") == pytest.approx(losses(tmp_path / "plain"), rel=TWO_PERCENT)


def test_the_loss_of_transformer_engine_is_megatrons(overrides, tmp_path):
    train_here([*overrides, *STEPS, "model.cross_entropy_fusion_impl=native"], tmp_path / "native")
    words = ["model.cross_entropy_loss_fusion=true", "model.cross_entropy_fusion_impl=te"]
    train_here([*overrides, *STEPS, *words], tmp_path / "engine")
    assert losses(tmp_path / "engine") == pytest.approx(losses(tmp_path / "native"), rel=TWO_PERCENT)


@pytest.mark.parametrize("graphs", [GRAPHS, ["model.cuda_graph_impl=full_iteration", GRAPHS[1]]])
def test_a_save_under_graphs_is_that_of_a_run_without(graphs, overrides, tmp_path):
    words = [*overrides, *STEPS]
    train_here([*words, *graphs, "train.exit_interval=5"], tmp_path / "run")
    train_here(words, tmp_path / "run", resume_with_changes=True)
    train_here(words, tmp_path / "straight")
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "straight"), rel=TWO_PERCENT)


def test_a_save_in_the_background_under_graphs_resumes(overrides, tmp_path):
    words = [*overrides, *STEPS, *GRAPHS, *SHARDED, "checkpoint.async_save=true"]
    train_here([*words, "train.exit_interval=5"], tmp_path / "run")
    train_here(words, tmp_path / "run", resume_with_changes=True)
    assert learned(tmp_path / "run")


@pytest.mark.parametrize("check", ["true", "false"])
def test_mfu_is_measured_with_and_without_the_check_of_the_loss(check, overrides, tmp_path):
    words = [*overrides, *STEPS, f"rerun_state_machine.check_for_nan_in_loss={check}"]
    train_here(words, tmp_path / "run")
    rows = [row for row in metrics(tmp_path / "run") if MFU in row]
    assert rows
    assert all(0 < row[MFU] < 1 and row[TFLOPS_PER_DEVICE] > 0 for row in rows)


def test_the_fast_settings_of_this_gpu_learn(overrides, tmp_path):
    train_here([*overrides, *STEPS, "perf=auto"], tmp_path / "run")
    assert learned(tmp_path / "run")


def test_packs_under_thd_learn(overrides, tmp_path):
    train_here([*overrides, *STEPS], tmp_path / "base")
    base = tmp_path / "base" / "checkpoints"
    settings = [
        "sft_tiny",
        *TEN_STEPS,
        "mixed_precision=bf16_mixed",
        "model.num_layers=1",
        "model.hidden_size=64",
        "model.vocab_size=300",
        "dataset.packed_sequence_specs.packed_sequence_size=256",
        "train.global_batch_size=8",
        "train.micro_batch_size=1",
        "checkpoint.pretrained_checkpoint=null",
        f"tokenizer.tokenizer_model={base / 'iter_0000010' / 'tokenizer.json'}",
    ]
    train_here(settings, tmp_path / "run")
    assert learned(tmp_path / "run")


@needs("pynvml")
def test_energy_is_measured(overrides, tmp_path):
    train_here([*overrides, *STEPS, "logger.log_energy=true"], tmp_path / "run")
    found = [row[ENERGY] for row in metrics(tmp_path / "run") if ENERGY in row]
    assert found
    assert all(joules > 0 for joules in found)


def test_the_flight_recorder_records_the_collectives(overrides, tmp_path):
    settings = [
        f"dist.flight_recorder_dump_path={tmp_path}/dumps/",
        "dist.flight_recorder_trace_buffer_size=100",
    ]
    counts = []

    class Look:
        def on_train_end(self, context):
            trace = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace())
            counts.append(len(trace["entries"]) > 0)

    train_here([*overrides, *STEPS, *SHARDED, *settings], tmp_path / "run", callbacks=(Look(),))
    assert counts == [True]
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
