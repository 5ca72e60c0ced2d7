"""Loop in the style of Megatron-LM that calls `training_log` after each step: `python megatron_style.py runs/megatron`.

`training_log` records the arguments that such a loop has available; `state.metrics` decides what is printed and stored,
and when. The model is plain PyTorch in a single process: with Megatron, pass `pg_collection`.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mb_metrics import LoggerConfig, Metrics, build_sinks, training_log

STEPS, WIDTH, TOKENS = 30, 8, 16


@dataclass(kw_only=True)
class TrainState:
    """Counters of a training run."""

    step: int = 0
    consumed_train_samples: int = 0
    skipped_train_samples: int = 0


@dataclass(kw_only=True)
class TrainSection:
    """Batch sizes."""

    global_batch_size: int = 8
    micro_batch_size: int = 4


@dataclass(kw_only=True)
class Config:
    """Fields of a configuration that `training_log` reads."""

    logger: LoggerConfig
    train: TrainSection = field(default_factory=TrainSection)
    model: Any = None


@dataclass(kw_only=True)
class State:
    """Fields of the global state that `training_log` reads."""

    train_state: TrainState
    metrics: Metrics


def train(folder: Path) -> None:
    """Fit a line."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    truth = torch.randn(WIDTH, 1)
    config = Config(logger=LoggerConfig(log_interval=10))
    sinks = build_sinks(config.logger, jsonl=folder / "metrics.jsonl")
    totals: dict[str, Any] = {}
    report_memory = True
    with Metrics(sinks, log_interval=config.logger.log_interval, total_steps=STEPS) as metrics:
        state = State(train_state=TrainState(), metrics=metrics)
        while state.train_state.step < STEPS:
            inputs = torch.randn(config.train.global_batch_size, WIDTH)
            loss = torch.nn.functional.mse_loss(model(inputs), inputs @ truth)
            optimizer.zero_grad()
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            state.train_state.step += 1
            state.train_state.consumed_train_samples += config.train.global_batch_size
            report_memory = training_log(
                {"lm loss": loss.detach()},
                totals,
                optimizer.param_groups[0]["lr"],
                None,
                1.0,
                report_memory,
                0,
                grad_norm,
                None,
                None,
                config,
                state,
                None,
                [model],
                seq_length=TOKENS,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where metrics.jsonl is written")
    train(parser.parse_args().folder)
