"""Tokenizer of the checkpoint from which a run starts or resumes. No torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mb_checkpoint.trainer_api import RUN_CONFIG, resumable_directories
from mb_config import SavedSettings
from mb_data import find_saved_tokenizer
from mb_trainer.config import ConfigContainer


def kept_by_run(config: ConfigContainer) -> Path | None:
    """Return the newest checkpoint of a run that has saved its tokenizer, if the configured files are missing."""

    def checkpoints() -> Iterator[Path]:  # listed only if a file of the tokenizer is missing
        yield from resumable_directories(config.checkpoint)

    return find_saved_tokenizer(config.tokenizer, checkpoints(), read_section=read_tokenizer)


def where_tokenizer(config: ConfigContainer) -> str | None:
    """Return the message that the tokenizer is read from a checkpoint of the run, if it is."""
    kept, section = kept_by_run(config), config.tokenizer
    if kept is None:
        return None
    return f"tokenizer: {section.tokenizer_model or section.vocab_file} is gone; read as {kept} has kept it"


def read_tokenizer(folder: Path) -> Mapping[str, Any]:
    """Return the tokenizer section that a checkpoint has saved; an empty one if it is missing or damaged."""
    return SavedSettings(file=folder / RUN_CONFIG).section("tokenizer")
