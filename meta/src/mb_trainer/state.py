"""What the parts of a run read of it."""

import time
from dataclasses import dataclass, field

from mb_loop import TrainState
from mb_trainer.config import ConfigContainer


@dataclass(slots=True, kw_only=True)
class GlobalState:
    """What the parts read of a run; passed to them, never found by them."""

    cfg: ConfigContainer
    train_state: TrainState
    start_time: float | None = field(default_factory=time.time)
