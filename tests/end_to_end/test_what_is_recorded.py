"""Records of a run in addition to the loss, and the event of a complete checkpoint."""

import json
import time
from pathlib import Path

import pytest
from runs import FullDisk, events, metrics, train_here

from mb_checkpoint import verify_checkpoint
from mb_loop import Callback
from mb_trainer.config import ConfigContainer

SHORT = [
    "train.train_iters=4",
    "validation.eval_interval=null",
    "logger.log_interval=2",
    "checkpoint.non_persistent_save_interval=null",
]


class Announced(Callback):
    """Recorder of the announced checkpoints: saved step, step of the run, and whether the checkpoint is complete."""

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self.seen: list[tuple[int, int, bool]] = []

    def on_checkpoint_save(self, context) -> None:
        """Verify the checkpoint."""
        folder = self.checkpoints / f"iter_{context.saved_step:07d}"
        complete = folder.is_dir() and not any(verify_checkpoint(folder).values())
        self.seen.append((context.saved_step, context.state.train_state.step, complete))


def test_skipped_samples_and_the_decoupled_rate_are_on_the_console_and_in_metrics(
    overrides, tmp_path, capsys
):
    out, announced = tmp_path / "run", Announced(tmp_path / "run/checkpoints")
    train_here(
        [*overrides, *SHORT, "logger.log_interval=1", "train.iterations_to_skip=[2]", "optimizer.decoupled_lr=1e-3",
         "checkpoint.save_interval=2", "optimizer.clip_grad=0.1", "logger.log_l2_norm_grad_to_tensorboard=true"],
        out, callbacks=(announced,),
    )  # fmt: skip
    rows = metrics(out)
    # measured before the optimizer clips
    assert [row["l2_norm/grad/global"] for row in rows] == pytest.approx([row["grad-norm"] for row in rows])
    assert all(row["grad-norm"] > 0.1 and row["loss-scale"] == 1.0 for row in rows)
    assert [(row["step"], row.get("skipped-train-samples")) for row in rows] == [
        (1, None),
        (3, 8.0),
        (4, 8.0),
    ]
    assert all(0 < row["decoupled-learning-rate"] < row["learning-rate"] for row in rows[1:])
    printed = capsys.readouterr().out
    assert "skipped samples:            8 |" in printed
    weights = 16 * 33_888  # float32 weights, gradients and two moments
    footprint = f"Theoretical memory footprints: weight and optimizer={weights / 2**20:.2f} MB"
    assert printed.splitlines().count(footprint) == 2  # of the first two of three log intervals
    assert announced.seen == [(2, 2, True), (4, 4, True)]


def test_the_resolved_configuration_is_written_to_the_given_file_and_spare_tokens_are_reported_once(
    overrides, tmp_path, capsys
):
    out, file = tmp_path / "run", tmp_path / "resolved.yaml"
    words = [*overrides, *SHORT, "train.train_iters=1", "model.vocab_size=400"]
    train_here([*words, f"logger.save_config_filepath={file}"], out)
    loaded = ConfigContainer.from_yaml(file)
    assert loaded == ConfigContainer.from_yaml(out / "run_config.yaml")
    assert (loaded.model.vocab_size, loaded.validation.eval_global_batch_size) == (400, 8)  # resolved
    warning = (
        "model.vocab_size=400: 100 rows of the embedding are padding, because the tokenizer has 300 tokens"
    )
    assert capsys.readouterr().out.splitlines().count(warning) == 1
    assert (out / "log.txt").read_text().splitlines().count(warning) == 1


def test_a_failed_save_is_reported_once_and_not_announced(overrides, tmp_path, capsys):
    out, announced = tmp_path / "run", Announced(tmp_path / "run/checkpoints")
    with FullDisk(until=3) as disk:
        outcome = train_here(
            [*overrides, *SHORT, "checkpoint.save_interval=2"], out, callbacks=(announced, disk)
        )
    assert outcome.saved
    assert [step for _, step, _ in announced.seen] == [step for step, _, _ in announced.seen]
    assert all(complete for _, _, complete in announced.seen)
    seen = events(out)
    failed, saved = ([step for event, step in seen if event == kind] for kind in ("save_failed", "save"))
    assert failed[0] == 2
    assert [step for step, _, _ in announced.seen] == saved
    printed = capsys.readouterr().out.splitlines()
    lines = [line for line in printed if "checkpoint save at step 2 to" in line]
    assert lines == [f"error: {lines[0].removeprefix('error: ')}"] * failed.count(2)


def test_the_start_of_a_later_run_of_a_process_lasts_from_its_own_call(overrides, tmp_path):
    words = [*overrides, *SHORT, "train.train_iters=1"]
    train_here(words, tmp_path / "first")
    called = time.time()
    train_here(words, tmp_path / "second")
    start = json.loads((tmp_path / "second" / "events.jsonl").read_text().splitlines()[0])
    assert 0 < start["seconds"] <= start["time"] - called
