"""Code of users in a run: forward step and loss, hooks on the model, sinks, and non-loss data."""

import json
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import pytest
import torch
from runs import losses, metrics, train_here

from mb_config import OptimizerConfigOverrideProvider
from mb_loop.errors import NonFiniteLossError
from mb_trainer import UserCode, finetune, pretrain
from mb_trainer.errors import RunFolderError, UserCodeError
from mb_trainer.recipes import gpt_tiny
from mb_trainer.requests import read_request

SHORT = ["train.train_iters=4", "scheduler.lr_warmup_iters=1", "checkpoint.save_interval=2"]


def mean_loss(output, non_loss_data=False, *, factor=1.0):
    """Return the mean of the token losses, under a name of the user; or the output."""
    if non_loss_data:
        return output.detach()
    loss = factor * output.float().mean()
    return loss, {"own loss": loss.detach()}


def own_step(state, data_iterator, model, factor=1.0):
    """Run the model; has a parameter for the global state."""
    assert state.cfg.train.train_iters == 4
    output, _ = import_module("mb_models").gpt_forward_step(data_iterator, model)
    return output, partial(mean_loss, factor=factor)


def without_token_loss(overrides):
    return [*overrides, *SHORT, "model.calculate_per_token_loss=false"]


def test_a_forward_step_and_its_loss_train_the_model(overrides, tmp_path):
    outcome = train_here(without_token_loss(overrides), tmp_path, forward_step_func=own_step)
    assert (outcome.reason, outcome.step) == ("finished", 4)
    rows = metrics(tmp_path)
    assert [row["own loss"] > 0 for row in rows if "own loss" in row] == [True] * 4
    standard = train_here(without_token_loss(overrides), tmp_path / "standard")
    assert standard.step == 4
    expected = list(losses(tmp_path / "standard").values())
    assert [row["own loss"] for row in rows if "own loss" in row] == pytest.approx(expected, rel=1e-2)


def test_the_loss_of_a_users_step_is_inspected(overrides, tmp_path):
    def broken(state, data_iterator, model):
        return own_step(state, data_iterator, model, factor=float("nan"))

    with pytest.raises(NonFiniteLossError):
        train_here(without_token_loss(overrides), tmp_path, forward_step_func=broken)


def test_a_run_resumes_with_the_same_code_only(overrides, tmp_path):
    words = without_token_loss(overrides)
    first = train_here([*words, "train.exit_interval=2"], tmp_path, forward_step_func=own_step)
    assert first.step == 2
    start = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert start["code"] == {"forward_step": [f"{__name__}.own_step"]}
    with pytest.raises(RunFolderError, match=r"code.forward_step: \['.*own_step'\] there, \[\] now"):
        train_here(words, tmp_path)
    assert train_here(words, tmp_path, forward_step_func=own_step).step == 4


def freeze_embedding(chunks):
    """Freeze the embedding."""
    for chunk in chunks:
        chunk.embedding.requires_grad_(False)


def test_hooks_see_the_chunks_before_and_after_they_are_wrapped(overrides, tmp_path):
    seen = []

    class FirstWeights:
        """Keeps the embedding at the start and at the end."""

        def on_train_start(self, context):
            self.start = self.embedding(context)

        def on_train_end(self, context):
            self.end = self.embedding(context)

        def embedding(self, context):
            names = dict(context.model[0].named_parameters())
            return next(value for name, value in names.items() if "word_embeddings" in name).clone()

    weights = FirstWeights()
    code = UserCode(
        pre_wrap_hooks=[freeze_embedding, lambda chunks: [*chunks]],
        post_wrap_hooks=[lambda chunks: seen.extend(type(chunk).__name__ for chunk in chunks)],
        callbacks=[weights],
    )
    train_here([*overrides, *SHORT], tmp_path, code=code)
    assert torch.equal(weights.start, weights.end)
    assert seen == ["DistributedDataParallel"]


def value_step(data_iterator, model):
    """Regress the value of each token on its number."""
    batch = next(data_iterator)
    values = model(batch["tokens"], batch["position_ids"], None)

    def loss(values):
        error = ((values.squeeze(-1) - batch["tokens"].float() / 300) ** 2).mean()
        return error, {"value loss": error.detach()}

    return values, loss


def test_a_value_head_is_trained_by_a_step_of_its_own(overrides, tmp_path):
    heads = import_module("mb_models")
    code = UserCode(
        forward_step=value_step,
        pre_wrap_hooks=[heads.create_value_head_hook(hidden_size=32, sequence_parallel=False)],
    )
    train_here(without_token_loss(overrides), tmp_path, code=code)
    values = [row["value loss"] for row in metrics(tmp_path) if "value loss" in row]
    assert len(values) == 4
    assert values[-1] < values[0]


def test_non_loss_data_and_rows_of_metrics_reach_the_user(overrides, tmp_path):
    import_module("mb_metrics")

    class Rows:
        """Sink of the user."""

        def __init__(self):
            self.steps = []

        def write_rows(self, rows):
            self.steps += [row.step for row in rows]

        def write_interval(self, interval):
            pass

        def write_evaluation(self, evaluation):
            pass

        def close(self):
            pass

    processed, rows = [], Rows()
    code = UserCode(
        forward_step=own_step,
        sinks=[rows],
        process_non_loss_data=lambda data, step, writer: processed.append(
            (len(data), step, type(writer).__name__)
        ),
    )
    words = [*without_token_loss(overrides), "validation.eval_interval=2"]
    train_here(words, tmp_path, code=code)
    assert rows.steps == [1, 2, 3, 4]
    validations_and_test = [(2, 2), (2, 4), (2, 4)]
    assert processed == [(*each, "SummaryWriter") for each in validations_and_test]


def test_data_that_would_go_nowhere_are_refused(overrides, tmp_path):
    code = UserCode(process_non_loss_data=print)
    with pytest.raises(UserCodeError, match=r"tensorboard_dir=null"):
        train_here([*overrides, *SHORT, "logger.tensorboard_dir=null"], tmp_path, code=code)


def test_fine_tuning_needs_weights():
    config = gpt_tiny()
    with pytest.raises(ValueError, match="pretrained_checkpoint"):
        finetune(config)


@dataclass(kw_only=True)
class SlowNorms(OptimizerConfigOverrideProvider):
    """Learning rates of the norms, as a fraction of the others."""

    factor: float = 0.1

    def build_config_overrides(self, context):
        """Add the norms to Megatron's standard overrides."""
        key = import_module("megatron.core.optimizer").ParamKey(name="*layernorm.weight")
        slow = {key: {"max_lr": self.factor * context.optimizer_config.lr}}
        return {**super().build_config_overrides(context), **slow}


class Rates:
    """Callback that keeps the maximum learning rates of all parameter groups."""

    def on_train_step_end(self, context):
        """Keep the rates of this step."""
        self.found = sorted({group["max_lr"] for group in context.optimizer.param_groups})


def test_optimizer_overrides_of_the_user_reach_the_optimizer(overrides, tmp_path):
    request, rates = read_request([*overrides, *SHORT, "optimizer.lr=0.002"]), Rates()
    request.config.optimizer_config_override_provider = SlowNorms()
    pretrain(request.config, callbacks=[rates], provenance=request.provenance, out=tmp_path, environment={})
    assert rates.found == pytest.approx([0.0002, 0.002])
    assert "SlowNorms" in (tmp_path / "run_config.yaml").read_text()


@pytest.mark.parametrize("part", ["pre_wrap_hooks", "post_wrap_hooks", "callbacks", "sinks"])
def test_one_object_in_place_of_a_list_is_rejected(part):
    with pytest.raises(UserCodeError, match=f"code.{part}: is not a list"):
        UserCode(**{part: print})
