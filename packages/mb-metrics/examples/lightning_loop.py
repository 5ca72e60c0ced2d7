"""Lightning with `LightningLogger`, which records what a module logs: `python lightning_loop.py runs/lightning`."""

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from torch.utils.data import DataLoader, TensorDataset

from mb_metrics import ConsoleSink, JsonlSink, LightningLogger, Metrics


class Line(lightning.LightningModule):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Log and return the loss of a batch."""
        loss = torch.nn.functional.mse_loss(self.line(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss of a validation batch."""
        self.log("val_loss", torch.nn.functional.mse_loss(self.line(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.1)


def train(folder: Path) -> None:
    """Fit a line with Lightning."""
    lightning.seed_everything(0)
    inputs = torch.randn(160, 8)
    data = TensorDataset(inputs, inputs @ torch.randn(8, 1))
    sinks = [ConsoleSink(), JsonlSink(folder / "metrics.jsonl")]
    with Metrics(sinks, log_interval=5, total_steps=20) as metrics:
        trainer = lightning.Trainer(
            max_epochs=2,
            accumulate_grad_batches=2,
            accelerator="auto" if torch.cuda.is_available() else "cpu",
            logger=LightningLogger(metrics, samples=16),
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[LearningRateMonitor()],
        )
        trainer.fit(Line(), DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=80))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where metrics.jsonl is written")
    train(parser.parse_args().folder)
