"""Fine-tuning through the trainer: only adapters are stored, a stop changes nothing, missing inputs are reported."""

from dataclasses import dataclass

import pytest
import torch
from runs import exit_code_of, metrics, train_here
from torch import nn

from mb_checkpoint import describe_checkpoint
from mb_models import PEFT
from mb_trainer import pretrain as pretrain_here
from mb_trainer.commands.errors import reported
from mb_trainer.commands.train import pretrain
from mb_trainer.requests import read_request


@pytest.fixture(scope="module")
def base(overrides, tmp_path_factory):
    """The checkpoints of a short run."""
    out = tmp_path_factory.mktemp("base") / "run"
    train_here(overrides, out)
    return out / "checkpoints"


def adapt(overrides, base, out, *words, **options):
    start = f"checkpoint.pretrained_checkpoint={base}"
    return train_here([*overrides, start, "peft=dora", "peft.dim=4", *words], out, **options)


def losses(out):
    return [row["lm loss"] for row in metrics(out) if "lm loss" in row]


def test_adapters_alone_are_stored_and_a_stop_changes_nothing(overrides, base, tmp_path, capsys):
    adapt(overrides, base, tmp_path / "whole")
    stored = list(describe_checkpoint(tmp_path / "whole" / "checkpoints").tensors)
    weights = [name for name in stored if not name.startswith(("optimizer", "chained"))]
    assert weights
    assert all(".adapter." in name for name in weights)
    adapt(overrides, base.parent, tmp_path / "cut", "train.exit_interval=10")
    adapt(overrides, base, tmp_path / "cut", "train.exit_interval=null", resume_with_changes=True)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert (
        exit_code_of(
            "sample", tmp_path / "whole", "--prompt", "the", "--tokens", 3, "--temperature", 0.0, "--seed", 1
        )
        == 0
    )


def test_adapters_go_out_alone_and_compute_what_the_merged_model_does(overrides, base, tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    adapt(overrides, base, tmp_path / "run", "peft.alpha=64", "optimizer.lr=0.01", "optimizer.min_lr=0.01")
    assert exit_code_of("export-hf", tmp_path / "run", "--out", tmp_path / "merged") == 0
    assert exit_code_of("export-hf", tmp_path / "run", "--out", tmp_path / "adapters", "--adapters") == 0
    assert exit_code_of("export-hf", base, "--out", tmp_path / "base") == 0
    before, merged = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name).eval()
        for name in ("base", "merged")
    )
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        whole, alone = merged(tokens).logits, before(tokens).logits
        adapted = peft.PeftModel.from_pretrained(before, tmp_path / "adapters").eval()(tokens).logits
    assert (whole - alone).abs().max() > 1e-2
    assert (whole - adapted).abs().max() < 1e-4


class TrainedScale(nn.Module):
    """A norm whose output has a trained scale."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.scale = norm, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.norm(x) * self.scale

    def state_dict(self, *args, prefix="", **options):
        found = super().state_dict(*args, prefix=prefix, **options)
        return type(found)((name.replace(f"{prefix}norm.", prefix), value) for name, value in found.items())


@dataclass(kw_only=True)
class ScaledNorms(PEFT):
    """A method of the user, as for Megatron-Bridge: it has a `transform` alone."""

    def transform(self, module, name=None, prefix=None):
        return TrainedScale(module) if name == "final_layernorm" else module


def test_a_method_with_a_transform_alone_trains_stores_its_parameters_and_resumes(overrides, base, tmp_path):
    def run(name, steps):
        words = [*overrides, f"checkpoint.pretrained_checkpoint={base}", f"train.train_iters={steps}"]
        request = read_request(
            [*words, "scheduler.lr_decay_iters=8", "optimizer.lr=0.01", "checkpoint.save_interval=2"]
        )
        request.config.peft = ScaledNorms()
        pretrain_here(
            request.config, name=request.name, out=tmp_path / name, environment={}, resume_with_changes=True
        )

    run("whole", 4)
    stored = describe_checkpoint(tmp_path / "whole" / "checkpoints").tensors
    assert [name for name in stored if not name.startswith(("optimizer", "chained"))] == [
        "decoder.final_layernorm.scale"
    ]
    run("cut", 2)
    run("cut", 4)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_a_run_without_adapters_has_none_to_export(base, tmp_path, capsys):
    assert exit_code_of("export-hf", base, "--out", tmp_path / "out", "--adapters") == 1
    assert "a run without adapters cannot be merged or exported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        ([], 1, "error V244  checkpoint.pretrained_checkpoint: is not set"),
        (
            ["checkpoint.pretrained_checkpoint=nowhere"],
            1,
            "error V244  checkpoint.pretrained_checkpoint: no such folder: nowhere",
        ),
        (["peft=ia3"], 2, "'ia3' is none of lora, canonical_lora, dora"),
    ],
)
def test_fine_tuning_from_nothing_is_refused(words, exit_code, message, tmp_path, capsys):
    options = {"files": [], "out": tmp_path, "nproc": None, "resume_with_changes": False}
    assert reported(lambda: pretrain(words, **options, command="finetune")) == exit_code
    assert message in capsys.readouterr().err
