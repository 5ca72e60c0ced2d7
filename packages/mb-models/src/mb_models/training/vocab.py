"""Vocabulary sizes: the tokenizer's, and that of the model's embedding."""

from mb_models.errors import ModelsError


class VocabularyError(ModelsError, ValueError):
    """A vocabulary size that the model cannot be built with."""


def padded_vocab_size(vocab_size: int, *, divisible_by: int, tensor_parallel_size: int) -> int:
    """Return a vocabulary size rounded up to a multiple of `divisible_by` times the tensor-parallel size.

    Every tensor-parallel rank then holds the same number of rows, a multiple of `divisible_by`.

    Raises:
        ValueError: a size is not positive.
    """
    for name, size in (
        ("vocab_size", vocab_size),
        ("divisible_by", divisible_by),
        ("tensor_parallel_size", tensor_parallel_size),
    ):
        if size < 1:
            raise ValueError(
                f"{name}: must be at least 1, got {size}; sizes are counts. Give a positive one."
            )
    multiple = divisible_by * tensor_parallel_size
    return -(-vocab_size // multiple) * multiple


def model_vocab_size(
    vocab_size: int | None,
    *,
    tokenizer_vocab_size: int | None,
    divisible_by: int,
    tensor_parallel_size: int,
) -> int:
    """Return the rows of the embedding: `vocab_size` without padding, or the tokenizer's size padded if that is None.

    Raises:
        VocabularyError: no size is given; the model's is smaller than the tokenizer's, so that some tokens have no
            row; or it is not divisible by the tensor-parallel size.
    """
    if vocab_size is None:
        if tokenizer_vocab_size is None:
            raise VocabularyError(
                "model.vocab_size: not set, and no tokenizer's size was given; the embedding needs a size. "
                "Set model.vocab_size or pass tokenizer_vocab_size."
            )
        return padded_vocab_size(
            tokenizer_vocab_size, divisible_by=divisible_by, tensor_parallel_size=tensor_parallel_size
        )
    if tokenizer_vocab_size is not None and vocab_size < tokenizer_vocab_size:
        raise VocabularyError(
            f"model.vocab_size: {vocab_size} is smaller than the tokenizer's {tokenizer_vocab_size}; "
            f"tokens from {vocab_size} up would have no embedding. Leave it unset, or set it to at least "
            f"{tokenizer_vocab_size}."
        )
    if vocab_size % tensor_parallel_size != 0:
        raise VocabularyError(
            f"model.vocab_size: {vocab_size} does not divide by tensor_model_parallel_size={tensor_parallel_size}; "
            "each rank holds the same number of rows. Leave it unset to have the tokenizer's size padded, or round "
            "it up."
        )
    return vocab_size


def known_vocab_size(
    vocab_size: int | None,
    *,
    tokenizer_vocab_size: int | None,
    divisible_by: int,
    tensor_parallel_size: int,
) -> int | None:
    """Return the rows of the embedding of a configuration that is not checked yet; None if they cannot be known.

    Arguments are as for `model_vocab_size`, which checks them.
    """
    if vocab_size is not None:
        return int(vocab_size)
    if tokenizer_vocab_size is None or min(tokenizer_vocab_size, tensor_parallel_size, divisible_by) < 1:
        return None
    return padded_vocab_size(
        tokenizer_vocab_size, divisible_by=divisible_by, tensor_parallel_size=tensor_parallel_size
    )


def padding_note(vocab_size: int | None, *, tokenizer_vocab_size: int) -> str | None:
    """Return a message with the number of embedding rows without a token; None if there are none."""
    padding = 0 if vocab_size is None else vocab_size - tokenizer_vocab_size
    if padding <= 0:
        return None
    return (
        f"model.vocab_size={vocab_size}: {padding} rows of the embedding are padding, because the tokenizer has "
        f"{tokenizer_vocab_size} tokens"
    )
