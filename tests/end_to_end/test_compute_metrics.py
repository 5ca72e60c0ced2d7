"""Metrics of the user in evaluations: their values, on every layout, and in every destination."""

import json
from dataclasses import replace

import pytest
import runs
import torch

from mb_checkpoint import best_checkpoint
from mb_loop import Callback
from mb_loop.step.losses import reduce_losses
from mb_models import EvaluationMetricsError
from mb_models.evaluation.metrics import Logits, with_metrics
from mb_trainer import UserCode, pretrain
from mb_trainer.errors import UserCodeError
from mb_trainer.requests import read_request

TINY = [
    "gpt_tiny",
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.seq_length=32",
    "dataset.seq_length=32",
    "train.train_iters=4",
    "train.micro_batch_size=4",
    "validation.eval_interval=2",
    "validation.eval_iters=2",
    "checkpoint.save_interval=2",
]

METRICS = '''
"""A recipe with metrics in one file."""

import torch

from mb_trainer import RECIPES, Recipe, UserCode


def compute_metrics(output):
    mask = output.loss_mask_BS
    right = (output.logits_BSV.argmax(-1) == output.labels_BS) * mask
    logits = output.logits_BSV.float().flatten(0, 1)
    again = torch.nn.functional.cross_entropy(logits, output.labels_BS.flatten(), reduction="none")
    return {
        "accuracy": torch.stack([right.sum(), mask.sum()]),
        "cross entropy": torch.stack([(again * mask.flatten()).sum(), mask.sum()]),
        "sequences": len(mask),
    }


def build():
    return RECIPES["gpt_tiny"].build()


RECIPE = Recipe(summary="gpt_tiny with metrics", build=build, code=UserCode(compute_metrics=compute_metrics))
'''


def evaluations(out):
    rows = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    return [row["losses"] for row in rows if row["event"] == "evaluation"]


@pytest.mark.parametrize(
    ("processes", "layout"),
    [
        (1, []),
        (2, ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]),
        (2, ["model.pipeline_model_parallel_size=2"]),
        (2, []),
        (2, ["model.context_parallel_size=2"]),
    ],
    ids=["one", "tp", "pp", "dp", "cp"],
)
def test_metrics_of_logits_and_labels_are_those_of_the_loss(tmp_path, processes, layout):
    """The cross-entropy of torch on the logits and labels is the loss that Megatron Core computes."""
    recipe = tmp_path / "metrics.py"
    recipe.write_text(METRICS)
    words = [*TINY[1:], *layout, "model.hidden_dropout=0", "model.attention_dropout=0"]
    out = tmp_path / "run"
    process = runs.start_mb(
        "pretrain", f"{recipe}:RECIPE", *words, "--nproc", str(processes), "--out", str(out)
    )
    output = process.communicate(timeout=170)
    assert process.returncode == 0, output
    found = evaluations(out)
    assert len(found) >= 2
    for losses in found:
        assert losses["cross entropy"] == pytest.approx(losses["lm loss"], rel=1e-5)
        assert 0 <= losses["accuracy"] <= 1
        assert losses["sequences"] == 4  # of each microbatch
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    written = [row["accuracy validation"] for row in rows if "accuracy validation" in row]
    assert written == [each["accuracy"] for each in found][: len(written)]
    assert len(written) >= 2
    assert not any("accuracy" in row for row in rows)


def train(out, compute_metrics, *words):
    request = read_request([*TINY, *words])
    code = UserCode(compute_metrics=compute_metrics)
    return pretrain(request.config, code=code, out=out, provenance=request.provenance, environment={})


def test_a_metric_can_select_the_best_checkpoint_and_end_training(tmp_path):
    values = iter([1.0, 1.0, 5.0, 5.0, 2.0, 2.0, 3.0, 3.0])  # two batches of an evaluation
    count = []

    def compute_metrics(output):
        count.append(len(output.labels_BS))
        return {"score": values_of(count, values)}

    # each evaluation reads the same number of microbatches
    outcome = train(
        tmp_path / "run",
        compute_metrics,
        "train.train_iters=12",
        "train.early_stop_metric=score",
        "train.early_stop_mode=max",
        "train.early_stop_patience=2",
        "checkpoint.best_metric=score",
        "checkpoint.best_metric_mode=max",
        "validation.eval_global_batch_size=1",
        "validation.eval_micro_batch_size=1",
    )
    assert (outcome.reason, outcome.step) == ("early_stop", 8)
    found = best_checkpoint(tmp_path / "run")
    assert (found.step, found.value) == (4, 5.0)


def values_of(count, values):
    return next(values, 0.0)


def test_training_steps_are_not_measured(tmp_path):
    modes = []

    class Steps(Callback):
        def on_train_step_end(self, context):
            modes.append(set(context.loss_dict))

    request = read_request(TINY)
    code = UserCode(compute_metrics=lambda output: {"one": 1.0}, callbacks=[Steps()])
    pretrain(request.config, code=code, out=tmp_path, provenance=request.provenance, environment={})
    assert modes == [{"lm loss"}] * 4


def test_a_microbatch_without_tokens_in_the_loss_is_left_out_of_a_mean():
    def compute_metrics(output):
        mask = output.loss_mask_BS
        mean = (output.losses_BS * mask).sum() / mask.sum()
        return {"mean": mean, "rows": torch.stack([mean * mask.sum(), mask.sum()])}

    def logged(mask):
        batch = {"labels_BS": torch.zeros(1, 2), "loss_mask_BS": torch.tensor([mask]), "logits": Logits()}
        loss = with_metrics(lambda losses: (losses.sum(), losses.sum(), {}), compute_metrics, **batch)
        return loss(torch.tensor([[3.0, 5.0]]))[2]

    averages = reduce_losses([logged([1.0, 1.0]), logged([0.0, 0.0]), logged([1.0, 0.0])], groups=None)
    assert averages["mean"] == (4 + 3) / 2
    assert averages["rows"] == (3 + 5 + 3) / 3


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (1.0, "compute_metrics: returned a float, not metrics by name. Return a dictionary."),
        ({"lm loss": 1.0}, "compute_metrics: lm loss is the name of a loss. Use another name."),
        ({"a": "high"}, "compute_metrics: a is a str, not a number."),
        ({"a": torch.ones(3)}, "compute_metrics: a has 3 elements."),
    ],
)
def test_a_result_that_cannot_be_averaged_is_named(tmp_path, found, message):
    with pytest.raises(EvaluationMetricsError) as caught:
        train(tmp_path, lambda output: found)
    assert str(caught.value).startswith(message)


def test_metrics_with_a_custom_forward_step_are_rejected():
    code = UserCode(compute_metrics=lambda output: {})
    with pytest.raises(UserCodeError, match="Return the metrics from the loss function"):
        replace(code, forward_step=lambda iterator, model: None)


def test_metrics_under_a_graph_of_the_whole_step_are_rejected(tmp_path):
    with pytest.raises(UserCodeError, match="a graph replays evaluations without Python"):
        train(tmp_path, lambda output: {}, "model.cuda_graph_impl=full_iteration")
