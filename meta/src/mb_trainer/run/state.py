"""Shared state of a run."""

import time
from dataclasses import dataclass, field

from mb_loop import TrainState
from mb_trainer.config import ConfigContainer


@dataclass(slots=True, kw_only=True)
class GlobalState:
    """State that the parts of a run share; passed explicitly, never through a global variable."""

    cfg: ConfigContainer
    train_state: TrainState
    start_time: float | None = field(default_factory=time.time)
