"""Checks of the data and of the tokenizer that a configuration names. No torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mb_checkpoint.trainer_api import RUN_CONFIG, resumable_directories
from mb_config import SavedSettings
from mb_config.trainer_api import DataCheck
from mb_data import find_saved_tokenizer
from mb_data.trainer_api import (
    dataset_facts,
    epoch_facts,
    tokenizer_facts,
    tokenizer_size,
    verify_dataset_files,
)
from mb_models import model_vocab_size
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


def verify_data(config: ConfigContainer) -> None:
    """Check every file that the dataset section names, before anything is built. The section must be finalized.

    Raises:
        DataPathError, IndexedFormatError, CorpusError: as `mb_data.data_checks.verify_dataset_files`.
        TokenizerError: the tokenizer cannot be read.
        VocabularyError: the model's embedding has no row for some of its tokens.
    """
    entries = tokenizer_size(config.tokenizer, config.dataset, saved=kept_by_run(config))
    model = config.model
    if model.vocab_size is not None:
        model_vocab_size(
            model.vocab_size,
            tokenizer_vocab_size=entries,
            divisible_by=model.make_vocab_size_divisible_by,
            tensor_parallel_size=model.tensor_model_parallel_size,
        )
    verify_dataset_files(config.dataset, evaluated=bool(config.validation.eval_iters))


def read_tokenizer_facts(config: ConfigContainer) -> dict[str, object]:
    """Return the facts about the tokenizer."""
    return tokenizer_facts(config.tokenizer, config.dataset, saved=kept_by_run(config))


_READ = frozenset({"tokenizer", "dataset", "checkpoint"})
TOKENIZER = DataCheck(
    read=read_tokenizer_facts, facts=frozenset({"tokenizer_entries", "tokenizer_error"}), sections=_READ
)
DATASET = DataCheck(
    read=lambda config: dataset_facts(config.dataset, evaluated=bool(config.validation.eval_iters)),
    facts=frozenset({"dataset_error"}),
    sections=frozenset({"dataset"}),
)
EPOCH = DataCheck(
    read=lambda config: epoch_facts(config, saved=kept_by_run(config)),
    facts=frozenset({"training_samples_error"}),
    sections=_READ | {"train", "model"},
)
