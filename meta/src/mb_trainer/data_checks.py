"""Checks of the data and of the tokenizer that a configuration names. No torch."""

from mb_config.preflight import DataCheck
from mb_data.data_checks import data_facts, tokenizer_size, verify_dataset_files
from mb_models.vocab import model_vocab_size
from mb_trainer.config import ConfigContainer
from mb_trainer.tokenizer_assets import kept_by_run


def verify_data(config: ConfigContainer) -> None:
    """Finalize the dataset section and check every file that it names, before anything is built.

    Raises:
        DataPathError, IndexedFormatError, CorpusError: as `mb_data.data_checks.verify_dataset_files`.
        TokenizerError: the tokenizer cannot be read.
        VocabularyError: the model's embedding has no row for some of its tokens.
    """
    config.dataset.finalize()
    entries, model = tokenizer_entries(config), config.model
    if model.vocab_size is not None:
        model_vocab_size(
            model.vocab_size,
            tokenizer_vocab_size=entries,
            divisible_by=model.make_vocab_size_divisible_by,
            tensor_parallel_size=model.tensor_model_parallel_size,
        )
    verify_dataset_files(config.dataset, evaluated=bool(config.validation.eval_iters))


def tokenizer_entries(config: ConfigContainer) -> int:
    """Return the number of tokens of the configured tokenizer; see `mb_data.data_checks.tokenizer_size`."""
    return tokenizer_size(config.tokenizer, config.dataset, saved=kept_by_run(config))


def read_facts(config: ConfigContainer) -> dict[str, object]:
    """Return the facts about the data of a run; see `mb_data.data_checks.data_facts`."""
    return data_facts(
        config.tokenizer,
        config.dataset,
        in_epochs=config.train.num_epochs is not None,
        saved=kept_by_run(config),
    )


DATA = DataCheck(
    read=read_facts,
    facts=frozenset({"tokenizer_entries", "tokenizer_error", "training_samples_error"}),
    sections=frozenset({"tokenizer", "dataset", "checkpoint"}),
)
"""Rules D99 and G38 read the tokenizer, D106 the samples."""
