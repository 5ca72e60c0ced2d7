"""Loop without torch: `python without_torch.py runs/numbers`. A metric is any number."""

import argparse
from pathlib import Path

from mb_metrics import ConsoleSink, JsonlSink, Metrics


def train(folder: Path) -> None:
    """Find the square root of two by Newton's method."""
    guess = 1.0
    with Metrics(
        [ConsoleSink(), JsonlSink(folder / "metrics.jsonl")], log_interval=2, total_steps=6
    ) as metrics:
        for step in range(1, 7):
            guess = (guess + 2 / guess) / 2
            metrics.record(step, {"error": abs(guess * guess - 2)}, samples=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where metrics.jsonl is written")
    train(parser.parse_args().folder)
