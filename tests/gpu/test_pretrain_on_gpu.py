"""Training on a GPU: local layers, overlaps, exact resumes, checkpoints from and to a host without one."""

import pytest
import torch
from on_gpu import BF16, ENGINE, ON_GPU, TEN_STEPS, learned, log_of
from runs import events, losses, mb, train_here

from mb_config import ConfigError

pytestmark = ON_GPU
LOCAL = ["model.transformer_impl=local"]
DETERMINISTIC = ["model.deterministic_mode=true", "model.cross_entropy_loss_fusion=false"]
SHARDED = [
    "ddp.use_distributed_optimizer=true",
    "comm_overlap.overlap_grad_reduce=true",
    "comm_overlap.overlap_param_gather=true",
]
RING = {"NCCL_ALGO": "Ring"}


def test_local_layers_learn(overrides, tmp_path):
    train_here([*overrides, *TEN_STEPS, *LOCAL], tmp_path / "run")
    assert learned(tmp_path / "run")
    assert "Megatron's local layers" in log_of(tmp_path / "run")


@pytest.mark.parametrize(
    "layers", [LOCAL, pytest.param(BF16, marks=ENGINE)], ids=["local", "transformer-engine"]
)
def test_the_distributed_optimizer_with_both_overlaps_learns(overrides, tmp_path, layers):
    train_here([*overrides, *TEN_STEPS, *SHARDED, *layers], tmp_path / "run")
    assert learned(tmp_path / "run")


@pytest.mark.parametrize(
    "settings",
    [
        LOCAL,
        [*LOCAL, *SHARDED],
        pytest.param(BF16, marks=ENGINE),
        pytest.param([*BF16, *SHARDED, "checkpoint.async_save=true"], marks=ENGINE),
        pytest.param([*BF16, "peft=lora", "peft.dim=4", "peft.dropout=0.1"], marks=ENGINE),
    ],
    ids=["local", "local-sharded", "transformer-engine", "sharded-async", "lora"],
)
def test_a_resume_is_exact(overrides, tmp_path, settings):
    words = [*overrides, *DETERMINISTIC, *settings, "model.hidden_dropout=0.1"]
    if "peft=lora" in settings:
        train_here([*overrides, *TEN_STEPS, *BF16], tmp_path / "base")
        words.append(f"checkpoint.pretrained_checkpoint={tmp_path / 'base' / 'checkpoints'}")
    done = mb("verify-resume", *words, "--steps", "8", "--cut", "4", environment=RING)
    assert done.returncode == 0, done.stdout + done.stderr


@ENGINE
@pytest.mark.parametrize("recipe", ["gpt_tiny", "moe_tiny", "mla_tiny"])
def test_a_checkpoint_goes_to_a_host_without_gpu_and_back(overrides, tmp_path, recipe):
    words = [recipe, *overrides, *TEN_STEPS, *BF16, "model.num_layers=3", "model.num_query_groups=null"]
    out = tmp_path / "run"
    train_here([*words, "train.exit_interval=5"], out)
    there = mb(
        "pretrain",
        *words,
        "train.exit_interval=8",
        *("--out", str(out), "--resume-with-changes"),
        environment={"CUDA_VISIBLE_DEVICES": ""},
    )
    assert there.returncode == 0, there.stdout + there.stderr
    assert "host layers (there is no GPU)" in log_of(out)
    train_here(words, out, resume_with_changes=True)
    assert learned(out)
    assert [step for event, step in events(out) if event == "resume"] == [5, 8]


@ENGINE
def test_a_save_in_the_background_is_the_same_checkpoint(overrides, tmp_path):
    """The run that saved in the background ends, after a resume, where the other does."""
    words = [*overrides, *TEN_STEPS, *BF16]
    train_here([*words, "checkpoint.async_save=true", "train.exit_interval=5"], tmp_path / "run")
    train_here(words, tmp_path / "run", resume_with_changes=True)
    train_here(words, tmp_path / "straight")
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "straight"), rel=1e-2)


@ENGINE
def test_user_buffers_need_tensor_parallelism(overrides, tmp_path):
    with pytest.raises(ConfigError, match="tp_comm_overlap"):
        train_here([*overrides, *TEN_STEPS, *BF16, "model.tp_comm_overlap=true"], tmp_path / "run")


def test_the_group_of_one_process_is_nccls(overrides, tmp_path):
    found = []

    class Look:
        def on_train_start(self, context):
            found.append((torch.distributed.get_backend(), next(context.model[0].parameters()).device.type))

    train_here([*overrides, *TEN_STEPS, *LOCAL], tmp_path / "run", callbacks=(Look(),))
    assert found == [("nccl", "cuda")]
