"""Logger of the trainer, which Megatron-Bridge's train_utils has, too."""

import logging

logger = logging.getLogger("mb_trainer")
