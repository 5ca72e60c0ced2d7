"""What a run takes from the checkpoint it starts from, besides tensors, and the commands that convert weights."""

import sys
from pathlib import Path

from mb_checkpoint.trainer_api import weight_directories
from mb_data import Tokenizer, save_tokenizer
from mb_models.trainer_api import carry_files
from mb_trainer.config import ConfigContainer

IMPORT, EXPORT = ((sys.executable, "-m", "mb_trainer", name) for name in ("import-hf", "export-hf"))


def save_assets(config: ConfigContainer, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer, and the small files that came with the initial weights, into a checkpoint."""
    named = config.checkpoint.pretrained_checkpoint
    save_tokenizer(tokenizer, folder)
    if named is not None:
        carry_files(weight_directories(Path(named)), folder)
