"""Plain PyTorch loop: `python plain_pytorch.py runs/plain` writes console lines and runs/plain/metrics.jsonl.

The loss is recorded as a tensor on its device; the loop does not synchronize with the device between log intervals.
"""

import argparse
from pathlib import Path

import torch

from mb_metrics import ConsoleSink, JsonlSink, MemorySampler, Metrics

STEPS, BATCH, WIDTH = 40, 16, 8


def train(folder: Path) -> None:
    """Fit a line with noise."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    truth = torch.randn(WIDTH, 1)
    sinks = [ConsoleSink(), JsonlSink(folder / "metrics.jsonl")]
    with Metrics(sinks, log_interval=10, total_steps=STEPS, samplers=[MemorySampler()]) as metrics:
        for step in range(1, STEPS + 1):
            inputs = torch.randn(BATCH, WIDTH)
            loss = torch.nn.functional.mse_loss(model(inputs), inputs @ truth)
            optimizer.zero_grad()
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            values = {"loss": loss, "grad-norm": grad_norm, "learning-rate": optimizer.param_groups[0]["lr"]}
            metrics.record(step, values, samples=BATCH)
            if step % 20 == 0:
                with metrics.pause(), torch.no_grad():
                    inputs = torch.randn(256, WIDTH)
                    held_out = torch.nn.functional.mse_loss(model(inputs), inputs @ truth)
                metrics.evaluation(step, {"loss": held_out})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where metrics.jsonl is written")
    train(parser.parse_args().folder)
