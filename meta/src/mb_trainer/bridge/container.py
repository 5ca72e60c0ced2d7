"""Container of a configuration, with the habits of Megatron-Bridge's. No torch."""

from dataclasses import dataclass
from typing import ClassVar

import mb_trainer.config


@dataclass(kw_only=True)
class ConfigContainer(mb_trainer.config.ConfigContainer):
    """Configuration of a run; the distributed optimizer is on if either ddp or optimizer has it on."""

    one_enables_both: ClassVar[bool] = True
