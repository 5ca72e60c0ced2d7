"""Logger for Lightning, called by a `Trainer`."""

import pytest

pytest.importorskip("lightning", reason="needs mb-metrics[lightning]")

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from mb_metrics import LightningLogger, Metrics


class Line(lightning.LightningModule):
    def __init__(self, before_step_4=lambda: None):
        super().__init__()
        self.line, self.before_step_4 = torch.nn.Linear(2, 1), before_step_4

    def training_step(self, batch, batch_idx):
        if self.global_step == 3:
            self.before_step_4()
        loss = self.line(batch[0]).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.line(batch[0]).square().mean())

    def test_step(self, batch, batch_idx):
        self.log("test/loss", self.line(batch[0]).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]


DATA = DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=1)


def trainer(logger, folder, **more):
    return lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[lightning.pytorch.callbacks.LearningRateMonitor(logging_interval="step")],
        **more,
    )


def test_what_a_module_logs_is_recorded(recorder, tmp_path):
    with Metrics([recorder], log_interval=4) as metrics:
        logger = LightningLogger(metrics, samples=1)
        fit = trainer(logger, tmp_path, log_every_n_steps=2)
        fit.fit(Line(), DATA, DATA)
        fit.test(Line(), DATA, verbose=False)
    rows = {row.step: row.values for row in recorder.rows}
    assert [step for step in rows if "train/loss" in rows[step]] == [2, 4, 6, 8, 10, 12]
    assert [step for step in rows if "val/loss" in rows[step]] == [6, 12]
    assert [step for step in rows if "test/loss" in rows[step]] == [12]
    assert rows[2]["lr-SGD"] == pytest.approx(0.01)
    assert rows[4]["batch-size"] == 1.0
    assert recorder.closed == 1
    assert (logger.name, logger.version, logger.experiment) == ("mb_metrics", None, metrics)


def test_rows_are_written_at_a_checkpoint_and_when_training_fails(recorder, tmp_path):
    seen = []

    def fail():
        seen.extend(recorder.steps)
        raise KeyError

    with Metrics([recorder], log_interval=100) as metrics:
        run = trainer(LightningLogger(metrics), tmp_path, log_every_n_steps=1)
        run.callbacks.append(lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=3))
        with pytest.raises(KeyError):
            run.fit(Line(fail), DATA)
    assert (seen, recorder.steps) == ([1, 2], [1, 2, 3])


def test_without_a_step_each_call_is_the_next_one(recorder):
    with Metrics([recorder]) as metrics:
        logger = LightningLogger(metrics)
        logger.log_metrics({"loss": 2.0})
        logger.log_metrics({"loss": 1.0})
    assert [(row.step, row.values["loss"]) for row in recorder.rows] == [(1, 2.0), (2, 1.0)]


def test_settings_of_a_model_are_not_metrics(recorder):
    with Metrics([recorder]) as metrics:
        LightningLogger(metrics).log_hyperparams({"lr": 0.1})
    assert recorder.rows == []


def test_a_validation_before_training_adds_to_the_first_step(recorder, tmp_path):
    with Metrics([recorder]) as metrics:
        run = trainer(LightningLogger(metrics), tmp_path, log_every_n_steps=1)
        run.validate(Line(), DATA, verbose=False)
        run.fit(Line(), DATA)
    assert recorder.steps == list(range(1, 13))
    assert {"val/loss", "train/loss"} <= set(recorder.rows[0].values)


def test_a_test_by_another_trainer_belongs_to_the_last_step_and_another_fit_continues(recorder, tmp_path):
    """Lightning's documentation advises a test with a trainer of one device; each trainer counts steps from 0."""
    with Metrics([recorder], log_interval=4) as metrics:
        logger = LightningLogger(metrics)
        trainer(logger, tmp_path, log_every_n_steps=1).fit(Line(), DATA)
        trainer(logger, tmp_path).test(Line(), DATA, verbose=False)
        trainer(logger, tmp_path).validate(Line(), DATA, verbose=False)
        trainer(logger, tmp_path, log_every_n_steps=1).fit(Line(), DATA)
    rows = {row.step: row.values for row in recorder.rows}
    assert [step for step in rows if "train/loss" in rows[step]] == [*range(1, 25)]
    assert [step for step in rows if {"test/loss", "val/loss"} <= rows[step].keys()] == [12]
