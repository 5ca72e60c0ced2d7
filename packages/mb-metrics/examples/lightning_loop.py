"""Callback for Lightning that records every optimizer step. `python lightning_loop.py runs/lightning` fits a line."""

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from mb_metrics import ConsoleSink, JsonlSink, Metrics


class MetricsCallback(lightning.Callback):
    """Callback that records loss, learning rate and samples of each optimizer step, and the validation losses.

    Args:
        metrics: Give it sinks on one rank only.
        world_size: Data-parallel ranks; samples are counted over all of them.
    """

    def __init__(self, metrics: Metrics, *, world_size: int = 1) -> None:
        self._metrics = metrics
        self._world_size = world_size
        self._losses: list[torch.Tensor] = []
        self._samples = 0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the step when the gradients of all its batches are accumulated."""
        self._losses.append(outputs["loss"].detach())
        self._samples += len(batch[0])
        if (batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch:
            return
        values = {
            # Lightning passes the loss divided by the number of accumulated batches.
            "loss": torch.stack(self._losses).mean() * trainer.accumulate_grad_batches,
            "learning-rate": trainer.optimizers[0].param_groups[0]["lr"],
        }
        self._metrics.record(trainer.global_step, values, samples=self._samples * self._world_size)
        self._losses, self._samples = [], 0

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Record a validation, except the one before training."""
        if not trainer.sanity_checking:
            self._metrics.evaluation(trainer.global_step, {"loss": trainer.callback_metrics["val_loss"]})

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Close the sinks."""
        self._metrics.close()


class Line(lightning.LightningModule):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return torch.nn.functional.mse_loss(self.line(batch[0]), batch[1])

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
    metrics = Metrics([ConsoleSink(), JsonlSink(folder / "metrics.jsonl")], log_interval=5, total_steps=20)
    trainer = lightning.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[MetricsCallback(metrics)],
    )
    trainer.fit(Line(), DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=80))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where metrics.jsonl is written")
    train(parser.parse_args().folder)
