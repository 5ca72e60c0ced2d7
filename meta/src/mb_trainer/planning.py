"""Sizes and FLOPs that the resource estimate of mb-config takes from other packages. No torch."""

from collections.abc import Mapping
from typing import cast

from mb_config.run_estimate import RunEstimate, estimate_run
from mb_data import TokenizerError
from mb_metrics import FlopsPerToken, UnknownFlopsError, model_flops_per_token
from mb_models.vocab import padded_vocab_size
from mb_trainer.config import ConfigContainer
from mb_trainer.data_checks import need_tokenizer_entries


def look_ahead(config: ConfigContainer, *, world_size: int) -> RunEstimate:
    """Estimate a configuration, resolved as far as possible.

    Raises:
        PlanError: the model's sizes cannot be counted.
    """
    rows = embedding_rows(config)
    return estimate_run(config, world_size=world_size, vocab_size=rows, count_flops=count_flops)


def count_flops(
    model: Mapping[str, object], /, *, seq_length: int, vocab_size: int | None
) -> FlopsPerToken | str:
    """Return the FLOPs per token of a model, or the reason why they are not counted."""
    decoder_seq_length = cast(int | None, model.get("decoder_seq_length"))  # only a T5 has this field
    try:
        return model_flops_per_token(
            model, seq_length=seq_length, vocab_size=vocab_size, decoder_seq_length=decoder_seq_length
        )
    except UnknownFlopsError as error:
        return str(error)


def embedding_rows(config: ConfigContainer) -> int | None:
    """Return the padded rows of the embedding, from the model or the tokenizer; None if neither is known."""
    model = config.model
    if model.vocab_size is not None:
        return int(model.vocab_size)
    size = tokenizer_entries(config)
    if size is None or min(size, model.tensor_model_parallel_size, model.make_vocab_size_divisible_by) < 1:
        return None
    return padded_vocab_size(
        size,
        divisible_by=model.make_vocab_size_divisible_by,
        tensor_parallel_size=model.tensor_model_parallel_size,
    )


def tokenizer_entries(config: ConfigContainer) -> int | None:
    """Return the vocabulary size of the tokenizer or of a text corpus; None if it cannot be read here."""
    try:
        return need_tokenizer_entries(config)
    except (TokenizerError, OSError):
        return None
