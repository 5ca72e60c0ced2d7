"""Callback for the Trainer of Transformers, called by it."""

import time

import pytest

pytest.importorskip("transformers", reason="needs mb-metrics[transformers]")
pytest.importorskip("accelerate", reason="needs mb-metrics[transformers]")
pytest.importorskip("torch")

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from mb_metrics import Metrics, TransformersCallback

SHAPE = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "vocab_size": 16,
}


def train(recorder, folder, trainer=Trainer, **arguments):
    """Train six steps of two microbatches; return the trainer."""
    torch.manual_seed(0)
    texts = [{"input_ids": line, "labels": line} for line in torch.randint(16, (64, 4))]
    settings = {
        "max_steps": 6,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "logging_steps": 2,
        "save_strategy": "no",
        "learning_rate": 0.1,
    }
    with Metrics([recorder], log_interval=3) as metrics:
        run = trainer(
            model=LlamaForCausalLM(LlamaConfig(**SHAPE)),
            args=TrainingArguments(
                output_dir=str(folder), report_to=[], disable_tqdm=True, use_cpu=True, **settings | arguments
            ),
            train_dataset=texts,
            eval_dataset=texts[:4],
            callbacks=[TransformersCallback(metrics)],
        )
        run.train()
        run.evaluate()
    return run


def test_every_step_is_recorded_with_the_losses_of_the_trainer(recorder, tmp_path):
    run = train(recorder, tmp_path, eval_strategy="steps", eval_steps=3)
    assert recorder.steps == [1, 2, 3, 4, 5, 6]
    losses = [row.values["loss"] for row in recorder.rows]
    logged = [entry for entry in run.state.log_history if "loss" in entry]
    means = [sum(losses[at : at + 2]) / 2 for at in (0, 2, 4)]
    assert means == pytest.approx([entry["loss"] for entry in logged], abs=1e-4)
    rates = [row.values["learning-rate"] for row in recorder.rows]
    assert (rates[0], rates) == (0.1, sorted(rates, reverse=True))
    assert [row.step for row in recorder.rows if "grad-norm" in row.values] == [2, 4, 6]
    values = recorder.rows[0].values
    assert (values["batch-size"], recorder.rows[-1].consumed_samples) == (4.0, 24)
    assert recorder.intervals[0].rates.tokens_per_second is not None
    evaluations = [(each.step, each.losses["loss"]) for each in recorder.evaluations]
    wanted = [(entry["step"], entry["eval_loss"]) for entry in run.state.log_history if "eval_loss" in entry]
    assert evaluations == wanted
    assert [step for step, _ in evaluations] == [3, 6, 6]
    assert {
        name for row in recorder.rows for name in row.values if "runtime" in name or "epoch" in name
    } == set()


class CustomLoss(Trainer):
    """A trainer that computes the loss outside the model, and logs a metric."""

    def compute_loss(self, model, inputs, return_outputs=False, **others):
        outputs = model(input_ids=inputs["input_ids"])
        loss = outputs.logits.square().mean()
        self.log({"logits": loss.item()})
        return (loss, outputs) if return_outputs else loss


def test_without_a_loss_in_the_output_the_logged_loss_is_recorded(recorder, tmp_path):
    train(recorder, tmp_path, trainer=CustomLoss)
    rows = {row.step: row.values for row in recorder.rows}
    assert [step for step in rows if "loss" in rows[step]] == [2, 4, 6]
    assert all("logits" in rows[step] for step in rows)


class Position(TrainerCallback):
    """A callback that loads a checkpoint of step 3; it is called after those of the test."""

    def on_train_begin(self, args, state, control, **others):
        state.global_step = 3


def test_steps_before_a_checkpoint_that_a_later_callback_loads_are_not_counted(recorder, tmp_path):
    class Resumed(Trainer):
        def train(self):
            self.add_callback(Position)
            return super().train()

    train(recorder, tmp_path, trainer=Resumed)
    assert [(row.step, row.consumed_samples) for row in recorder.rows] == [(4, None), (5, None), (6, None)]


def test_rows_are_written_before_a_checkpoint_is_used(recorder, tmp_path):
    seen = []

    class Saving(Trainer):
        def _save_checkpoint(self, *arguments, **others):
            super()._save_checkpoint(*arguments, **others)
            seen.append(list(recorder.steps))

    train(recorder, tmp_path, trainer=Saving, save_strategy="steps", save_steps=2)
    assert len(seen) == 3
    assert recorder.steps == [1, 2, 3, 4, 5, 6]


def test_an_evaluation_is_no_training_time(recorder, tmp_path):
    class Slow(Trainer):
        def prediction_step(self, *arguments, **others):
            found = super().prediction_step(*arguments, **others)
            if self.state.global_step == 2:
                time.sleep(2)
            return found

    train(recorder, tmp_path, trainer=Slow, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=2)
    assert all(interval.rates.step_seconds < 0.6 for interval in recorder.intervals)
