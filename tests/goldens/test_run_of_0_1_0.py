"""A run folder of version 0.1.0 is read and resumed: files, class names, weights, optimizer, position in the data."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from runs import losses, mb_here, train_here

from mb_config.container.codec import is_moved
from mb_loop import Callback
from mb_schema.value_types import dataclasses_of, hints
from mb_trainer.config import ConfigContainer

RUN = Path(__file__).parent / "run_0_1_0"
"""The run that `mb pretrain gpt_tiny` with `OVERRIDES` left after step 3 of 6, and its text files."""
OVERRIDES = [
    "dataset.sources=[corpus]",
    "dataset.cache_dir=cache",
    "dataset.vocab_size=280",
    "dataset.validation_fraction=0.2",
    "dataset.test_fraction=0.2",
    "dataset.seq_length=16",
    "model.seq_length=16",
    "model.num_layers=1",
    "model.hidden_size=16",
    "model.ffn_hidden_size=32",
    "model.num_attention_heads=2",
    "model.num_query_groups=2",
    "model.hidden_dropout=0.1",
    "train.train_iters=6",
    "train.global_batch_size=4",
    "train.micro_batch_size=2",
    "validation.eval_interval=3",
    "validation.eval_iters=1",
    "checkpoint.save_interval=3",
    "logger.log_interval=1",
    "scheduler.lr_warmup_iters=2",
]
WEIGHTS_OF_STEP_3 = "5e7370854bf0e7f4a864fdd91f641ad73f18c9b6c82fa35b79104e44a62b7f1d"
LOSSES = {4: 5.932857513427734, 5: 5.880011558532715, 6: 5.890925884246826}
"""Losses of the steps after the checkpoint, as version 0.1.0 computed them when it resumed the run."""
CLASSES_IN_FILES = json.loads((RUN / "targets.json").read_text())
"""Names of classes that version 0.1.0 wrote into configuration files (`_target_`)."""


class WeightsAtStart(Callback):
    """Hash of all parameters when training starts."""

    def on_train_start(self, context):
        """Hash the names, shapes and bytes of the parameters."""
        hashed = hashlib.sha256()
        for chunk in context.model:
            for name, parameter in sorted(chunk.named_parameters()):
                hashed.update(f"{name} {[*parameter.shape]}".encode())
                hashed.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
        self.digest = hashed.hexdigest()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A copy of the run, next to its text files, in the working directory."""
    shutil.copytree(RUN, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("run")


def test_a_run_of_0_1_0_resumes_with_its_weights_and_losses(run):
    weights = WeightsAtStart()
    outcome = train_here(OVERRIDES, run, callbacks=(weights,))
    assert outcome.exit_code == 0
    assert weights.digest == WEIGHTS_OF_STEP_3
    resumed = {step: loss for step, loss in losses(run).items() if step > 3}
    assert resumed == pytest.approx(LOSSES, rel=1e-6)  # processors differ in the last bits of a sum


@pytest.mark.parametrize(
    "words", [["check", "run/run_config.yaml"], ["ckpt", "verify", "run"], ["report", "run"]], ids=" ".join
)
def test_commands_read_a_run_of_0_1_0(run, words):
    assert mb_here(*words).returncode == 0


def test_names_of_classes_in_files_of_0_1_0_are_known():
    known = {cls for hint in hints(ConfigContainer).values() for cls in dataclasses_of(hint)}
    assert [name for name in CLASSES_IN_FILES if sum(is_moved(cls, name) for cls in known) != 1] == []
