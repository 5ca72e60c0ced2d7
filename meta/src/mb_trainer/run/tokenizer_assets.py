"""Tokenizer of the checkpoint from which a run starts or resumes. No torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mb_checkpoint.formats.layout import RUN_CONFIG
from mb_checkpoint.load.directories import is_checkpoint_file, resumable_directories, weight_directories
from mb_config import Provenance, SavedSettings
from mb_data.tokenizers.saved_tokenizer import (
    HUGGING_FACE,
    find_saved_tokenizer,
    original_tokenizer_settings,
    tokenizer_settings_of_weights,
)
from mb_trainer.config import ConfigContainer


def take_tokenizer(config: ConfigContainer, *, run_config: Path, provenance: Provenance) -> None:
    """Use the tokenizer of the weights from which a run starts, unless the user has set one.

    A resumed run, whose saved settings are `run_config`, keeps its original tokenizer; `kept_by_run` locates its files.
    """
    weights, section = config.checkpoint.pretrained_checkpoint, config.tokenizer
    chosen = any(provenance.by_user(f"tokenizer.{name}") for name in ("tokenizer_type", "tokenizer_model"))
    if chosen or section.tokenizer_type not in (None, HUGGING_FACE):
        return
    previous = SavedSettings(file=run_config)
    original = original_tokenizer_settings(previous.section("tokenizer"))
    saved = previous.section("checkpoint").get("pretrained_checkpoint")
    if original is not None and not is_checkpoint_file(Path(original["tokenizer_model"]), weights=saved):
        original = None
    taken = tokenizer_settings_of_weights(
        [] if weights is None else weight_directories(Path(weights)),
        original=original,
        is_resumed=bool(resumable_directories(config.checkpoint)),
        read_section=read_tokenizer,
    )
    for name, value in taken.items():
        if not provenance.by_user(f"tokenizer.{name}"):
            setattr(section, name, value)
            provenance.note(f"tokenizer.{name}", "resolve: the tokenizer of checkpoint.pretrained_checkpoint")


def kept_by_run(config: ConfigContainer) -> Path | None:
    """Return the newest checkpoint of a run that has saved its tokenizer, if the configured files are missing."""
    folders = resumable_directories(config.checkpoint)
    return find_saved_tokenizer(config.tokenizer, folders, read_section=read_tokenizer)


def where_tokenizer(config: ConfigContainer) -> str | None:
    """Return the message that the tokenizer is read from a checkpoint of the run, if it is."""
    kept, section = kept_by_run(config), config.tokenizer
    if kept is None:
        return None
    return f"tokenizer: {section.tokenizer_model or section.vocab_file} is gone; read as {kept} has kept it"


def read_tokenizer(folder: Path) -> Mapping[str, Any]:
    """Return the tokenizer section that a checkpoint has saved; an empty one if it is missing or damaged."""
    return SavedSettings(file=folder / RUN_CONFIG).section("tokenizer")
