"""Early stopping and the best checkpoint in runs of the trainer."""

import json

import pytest
import runs
import torch

from mb_checkpoint import best_checkpoint, list_checkpoints
from mb_loop import Callback

WORDS = [
    "gpt_tiny",
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.seq_length=32",
    "dataset.seq_length=32",
    "train.train_iters=16",
    "validation.eval_interval=2",
    "validation.eval_iters=1",
    "checkpoint.save_interval=2",
    "scheduler.lr_warmup_iters=0",
    "optimizer.lr=0.5",  # too large: the loss rises and falls
    "optimizer.min_lr=0.5",
]


def validation_losses(out):
    """Return the losses of the evaluations during training by step."""
    rows = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    found = {}
    for row in rows:
        if row["event"] == "evaluation":
            found.setdefault(row["step"], row["losses"].get("lm loss"))
    return found


def stop_of(losses, patience):
    """Return the step after which training ends, and the best one, by definition."""
    best, count = None, 0
    for step, loss in losses.items():
        if best is None or loss < losses[best]:
            best, count = step, 0
        else:
            count += 1
        if count == patience:
            return step, best
    return None


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Run without early stopping."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert runs.train_here(WORDS, out).reason == "finished"
    return out


@pytest.mark.parametrize("cut", [None, 2, 4])
def test_a_run_stops_by_the_losses_of_the_complete_one_and_keeps_the_best(whole, tmp_path, cut, capsys):
    step, best = stop_of(validation_losses(whole), patience=1)
    assert step < 16
    words = [
        *WORDS,
        "train.early_stop_patience=1",
        "checkpoint.best_metric=lm loss",
        "checkpoint.most_recent_k=1",
    ]
    out = tmp_path / "run"
    if cut is not None and cut < step:

        class Cut(Callback):
            def on_train_step_end(self, context):
                if context.state.train_state.step == cut + 1:
                    raise InterruptedError

        with pytest.raises(InterruptedError):
            runs.train_here(words, out, callbacks=(Cut(),))
    outcome = runs.train_here(words, out)
    assert (outcome.reason, outcome.step, outcome.exit_code) == ("early_stop", step, 0)
    kept = {each.step: each.best is not None for each in list_checkpoints(out / "checkpoints")}
    assert kept == {step: False, best: True}
    assert best_checkpoint(out).value == validation_losses(whole)[best]
    assert (out / "checkpoints" / "best").resolve().name == f"iter_{best:07d}"
    again = runs.train_here(words, out)
    assert (again.reason, again.step, again.saved) == ("early_stop", step, False)
    missing = "the evaluation after training may be missing"
    assert missing not in capsys.readouterr().out
    lines = (out / "events.jsonl").read_text().splitlines(keepends=True)
    last_save = max(number for number, line in enumerate(lines) if '"save"' in line)
    (out / "events.jsonl").write_text("".join(lines[: last_save + 1]))  # as of a killed process
    assert runs.train_here(words, out).reason == "early_stop"
    assert missing in capsys.readouterr().out


class Counter(Callback):
    """Callback of a user with a state."""

    def __init__(self):
        self.steps = 0

    def on_train_step_end(self, context):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def test_the_state_of_a_callback_of_the_user_is_resumed(tmp_path):
    first, second = Counter(), Counter()
    words = [*WORDS, "train.train_iters=8"]
    runs.train_here([*words, "train.exit_interval=4"], tmp_path / "run", callbacks=(first,))
    runs.train_here(words, tmp_path / "run", callbacks=(second,), resume_with_changes=True)
    assert (first.steps, second.steps) == (4, 8)


def test_two_pipeline_stages_stop_after_the_same_step(tmp_path):
    """The losses are known on the last stage only, and the first one writes the checkpoints."""
    words = [*WORDS[1:], "model.num_layers=2", "model.pipeline_model_parallel_size=2"]
    stopping = [
        "train.early_stop_patience=1",
        "train.early_stop_min_delta=100",
        "checkpoint.best_metric=lm loss",
    ]
    process = runs.start_mb("pretrain", "gpt_tiny", *words, *stopping, "--nproc", "2", "--out", str(tmp_path))
    output = process.communicate(timeout=120)
    assert process.returncode == 0, output
    losses = validation_losses(tmp_path)
    found = best_checkpoint(tmp_path)
    assert [*losses] == [2, 4]
    assert (found.step, found.value) == min((loss, step) for step, loss in losses.items())[::-1]
    assert torch.isfinite(torch.tensor([*losses.values()])).all()
