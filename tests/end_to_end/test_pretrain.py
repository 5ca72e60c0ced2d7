"""The main job at small scale: the files of a run, its resume, and the requests that it rejects."""

import json
import re
import shutil

import pytest
import torch
from runs import events, losses, metrics, train_here
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mb_data.errors import CorpusError
from mb_loop import Callback, NonFiniteLossError
from mb_metrics.cli.report import read_run_with_settings
from mb_trainer import pretrain
from mb_trainer.errors import RunFolderError
from mb_trainer.requests import read_request

CLOUDAI = re.compile(
    r"Step Time\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*s.*?GPU utilization:\s*([0-9]+(?:\.[0-9]+)?)\s*(?:MODEL_)?TFLOP/s/GPU",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def straight(overrides, tmp_path_factory):
    """The folder of a run of twenty steps."""
    out = tmp_path_factory.mktemp("straight") / "run"
    assert train_here(overrides, out).reason == "finished"
    return out


def test_the_loss_falls(straight):
    steps = losses(straight)
    assert list(steps) == list(range(1, 21))
    assert steps[20] < 0.9 * steps[1]


def test_the_run_folder_holds_everything(straight):
    assert {path.name for path in straight.iterdir()} == {
        "checkpoints",
        "events.jsonl",
        "log.txt",
        "metrics.jsonl",
        "run_config.yaml",
        "tensorboard",
    }
    assert {path.name for path in (straight / "checkpoints").iterdir()} == {
        "iter_0000010",
        "iter_0000020",
        "latest_checkpointed_iteration.txt",
        "latest_train_state.pt",
    }


def test_every_step_has_its_metrics(straight):
    first = metrics(straight)[0]
    assert {"step", "time", "lm loss", "learning-rate", "grad-norm", "batch-size"} <= set(first)


def test_validation_is_a_metric_and_an_event(straight):
    assert [row["step"] for row in metrics(straight) if "lm loss validation" in row] == [10, 20]
    assert events(straight) == [
        ("start", 0),
        ("evaluation", 10),
        ("save", 10),
        ("evaluation", 20),
        ("save", 20),
        ("stop", 20),
    ]


def test_log_readers_find_the_step_time(straight):
    assert len(CLOUDAI.findall((straight / "log.txt").read_text())) == 4


def test_tensorboard_reads_the_loss_of_every_step(straight):
    board = EventAccumulator(str(straight / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("lm loss")] == list(range(1, 21))


def test_a_stopped_run_resumes_bit_for_bit(overrides, straight, tmp_path):
    out = tmp_path / "run"
    halfway = train_here([*overrides, "train.exit_interval=10"], out)
    assert (halfway.reason, halfway.step, halfway.saved) == ("interval", 10, True)
    train_here(overrides, out, resume_with_changes=True)
    assert losses(out) == losses(straight)


def test_dropout_resumes_bit_for_bit(overrides, tmp_path):
    words = [*overrides, "model.hidden_dropout=0.1", "model.attention_dropout=0.1", "train.train_iters=12"]
    train_here(words, tmp_path / "straight")
    train_here([*words, "train.exit_interval=6"], tmp_path / "run")
    train_here(words, tmp_path / "run", resume_with_changes=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "straight")


def test_a_complete_run_is_left_alone(overrides, straight, capsys):
    before = (straight / "metrics.jsonl").read_bytes()
    outcome = train_here(overrides, straight)
    assert (outcome.reason, outcome.step) == ("finished", 20)
    assert "the run is complete (20 steps); nothing to do" in capsys.readouterr().out
    assert (straight / "metrics.jsonl").read_bytes() == before


def test_a_run_killed_in_its_last_evaluation_prints_how_to_repeat_it(overrides, straight, tmp_path, capsys):
    """A killed process leaves no event after the last save, as a run that has ended does."""
    missing, run = "the evaluation after training may be missing", shutil.copytree(straight, tmp_path / "run")
    train_here(overrides, run)
    assert missing not in capsys.readouterr().out
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    last_save = max(number for number, line in enumerate(lines) if '"save"' in line)
    (run / "events.jsonl").write_text("".join(lines[: last_save + 1]))
    train_here(overrides, run)
    assert missing in capsys.readouterr().out
    train_here([*overrides, "validation.skip_train=true"], run)
    printed = capsys.readouterr().out
    assert "iteration 20 on validation set" in printed
    assert "iteration 20 on test set" in printed


def test_another_run_in_the_same_folder_is_refused(overrides, straight):
    with pytest.raises(RunFolderError, match=r"optimizer.lr: 0.002 there, 0.1 now"):
        train_here([*overrides, "optimizer.lr=0.1"], straight)


def test_a_complete_run_can_be_made_longer(overrides, tmp_path):
    train_here([*overrides, "train.train_iters=4"], tmp_path / "run")
    outcome = train_here([*overrides, "train.train_iters=8"], tmp_path / "run", resume_with_changes=True)
    assert (outcome.reason, outcome.step) == ("finished", 8)
    assert list(losses(tmp_path / "run")) == list(range(1, 9))


def test_a_resumed_run_takes_another_learning_rate(overrides, tmp_path, capsys):
    out, words = (
        tmp_path / "run",
        [*overrides, "scheduler.lr_decay_style=constant", "scheduler.lr_warmup_iters=0"],
    )
    train_here([*words, "train.train_iters=4", "train.exit_interval=2"], out)
    other = [
        "optimizer.lr=0.004",
        "optimizer.min_lr=0.001",
        "optimizer.weight_decay=0.3",
        "optimizer.adam_beta2=0.9",
    ]
    with pytest.raises(RunFolderError, match="resume with the new settings with --resume-with-changes"):
        train_here([*words, *other, "train.train_iters=4"], out)
    with pytest.raises(
        RunFolderError, match=r"model.hidden_size cannot be changed here(?!.*resume-with-changes)"
    ):
        train_here([*words, *other, "train.train_iters=4", "model.hidden_size=64"], out)
    capsys.readouterr()
    train_here(
        [*words, *other, "train.train_iters=4", "train.exit_interval=3"], out, resume_with_changes=True
    )
    shutil.rmtree(out / "checkpoints" / "iter_0000003")  # as if the run had ended before it saved
    (out / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")
    train_here([*words, *other, "train.train_iters=4"], out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["learning-rate"] for row in rows if "learning-rate" in row] == [0.002, 0.002, 0.004, 0.004]
    log = capsys.readouterr().out
    assert "scheduler: the configured values apply: optimizer.lr: 0.004 here, 0.002 in the checkpoint" in log
    assert "optimizer: the configured values apply: betas (0.9, 0.9) (in the checkpoint: (0.9, 0.95))" in log
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    [changes] = [event["changes"] for event in events if "changes" in event]
    assert changes["optimizer.lr"] == [0.002, 0.004]
    [note] = [note for note in read_run_with_settings(out).notes if "settings changed" in note]
    assert "at the resume from step 2: optimizer.lr from 0.002 to 0.004, optimizer.min_lr from" in note


class Norms(Callback):
    """A user's own callback: reads the gradient norm of each step."""

    def __init__(self):
        self.values = []

    def on_train_step_end(self, context):
        self.values.append(float(context.grad_norm))


def test_a_user_can_listen(overrides, tmp_path):
    norms = Norms()
    train_here([*overrides, "train.train_iters=3"], tmp_path / "run", callbacks=(norms,))
    assert norms.values == [row["grad-norm"] for row in metrics(tmp_path / "run") if "grad-norm" in row]


def test_nothing_global_is_left_behind(straight):
    assert not torch.distributed.is_initialized()


def test_a_loss_that_is_no_number_ends_the_run(overrides, tmp_path):
    words = [*overrides, "optimizer.lr=1e30", "optimizer.clip_grad=0", "checkpoint.save_interval=1"]
    with pytest.raises(NonFiniteLossError, match="NaN or infinite at step 4"):
        train_here(words, tmp_path / "run")
    assert events(tmp_path / "run")[-1][0] == "stop"
    saved = [path.name for path in sorted((tmp_path / "run" / "checkpoints").glob("iter_*"))]
    assert saved == ["iter_0000001", "iter_0000002", "iter_0000003"]  # none of the step with that loss


def test_a_loss_that_is_no_number_can_end_the_step_itself(overrides, tmp_path):
    words = [*overrides, "optimizer.lr=1e30", "optimizer.clip_grad=0"]
    with pytest.raises(NonFiniteLossError, match="loss: is nan"):
        train_here([*words, "rerun_state_machine.check_loss_immediately=true"], tmp_path / "run")


def test_the_batch_ramps_up_and_a_checkpoint_comes_before_each_increase(overrides, tmp_path):
    words = [
        *overrides,
        "train.rampup_batch_size=[4,4,16]",
        "train.train_iters=8",
        "validation.eval_interval=null",
    ]
    train_here([*words, "checkpoint.save_interval=100"], tmp_path / "run")
    rows = [row for row in metrics(tmp_path / "run") if "batch-size" in row]
    assert [row["batch-size"] for row in rows] == [4.0, 4.0, 4.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert [event for event in events(tmp_path / "run") if event[0] == "save"] == [("save", 4), ("save", 8)]


def test_data_that_cannot_be_used_leaves_no_run_folder(overrides, tmp_path):
    (tmp_path / "single.txt").write_text("one file for three splits")
    with pytest.raises(CorpusError, match=r"1 document\(s\) are too few for train, valid and test"):
        train_here([*overrides, f"dataset.sources=[{tmp_path}/single.txt]"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_ended_a_run_is_in_its_log(overrides, tmp_path):
    class Fault(Callback):
        def on_train_step_end(self, context):
            raise RuntimeError("a planted fault")

    with pytest.raises(RuntimeError, match="a planted fault"):
        train_here(overrides, tmp_path / "run", callbacks=(Fault(),))
    assert "RuntimeError: a planted fault" in (tmp_path / "run" / "log.txt").read_text()


SHORT = ["train.train_iters=2", "checkpoint.save_interval=2", "validation.eval_iters=0"]


def test_a_saved_configuration_trains_in_another_folder_and_leaves_its_run_alone(straight, tmp_path):
    before = {path: path.read_bytes() for path in straight.rglob("*") if path.is_file()}
    saved = [str(straight / "run_config.yaml"), "checkpoint.most_recent_k=1", *SHORT]
    assert train_here(saved, tmp_path / "other").reason == "finished"
    assert before == {path: path.read_bytes() for path in straight.rglob("*") if path.is_file()}
    assert (tmp_path / "other" / "checkpoints" / "iter_0000002").is_dir()
    assert list(losses(tmp_path / "other")) == [1, 2]


def test_one_configuration_object_trains_in_a_folder_for_each_learning_rate(overrides, tmp_path):
    request = read_request([*overrides, *SHORT, "optimizer.min_lr=0"])
    config, rows = request.config, {}
    for rate in (1e-3, 1e-2, 1e-4):
        config.optimizer.lr = rate
        out = tmp_path / str(rate)
        assert pretrain(config, out=out, environment={}).step == 2
        rows[rate] = metrics(out)[-1]["learning-rate"]
        assert (out / "checkpoints" / "iter_0000002").is_dir()
    assert config.checkpoint.save is None
    assert rows[1e-3] / rows[1e-4] == pytest.approx(10)
    assert rows[1e-2] / rows[1e-3] == pytest.approx(10)
