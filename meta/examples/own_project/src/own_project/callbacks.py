"""Callback of the project."""

from typing import Any

import torch


class TokenCounter:
    """Counts the tokens of a run and prints them at its end."""

    def __init__(self) -> None:
        self.tokens = 0

    def on_train_step_end(self, context: Any) -> None:
        """Add the tokens of a step; `context.result` is the `StepResult` of mb-loop."""
        self.tokens += context.result.tokens or 0

    def on_train_end(self, context: Any) -> None:
        """Print the number of tokens on one rank."""
        if torch.distributed.get_rank() == 0:
            print(f"own_project: {self.tokens} tokens")
