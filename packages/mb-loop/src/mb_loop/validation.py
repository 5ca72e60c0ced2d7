"""When a validation is due, and the line that reports it. No torch."""

import math
from collections.abc import Mapping

from mb_loop.settings import ValidationSettings
from mb_loop.state import TrainState


def evaluation_due(validation: ValidationSettings, state: TrainState) -> bool:
    """Say whether a validation follows the step that was just counted."""
    if not (state.do_valid and validation.eval_iters and validation.eval_interval):
        return False
    if validation.start_eval_at_iter is not None and state.step < validation.start_eval_at_iter:
        return False
    return state.step % validation.eval_interval == 0


def validation_line(prefix: str, losses: Mapping[str, float]) -> str:
    """Return the line that log readers know: each loss with its perplexity, which is capped at exp(20)."""
    pieces = [
        f"{name} value: {loss:.6E} | {name} PPL: {math.exp(20 if loss > 20 else loss):.6E} | "
        for name, loss in losses.items()
    ]
    return f" validation loss at {prefix} | {''.join(pieces)}"
