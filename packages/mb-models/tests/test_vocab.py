import pytest

from mb_models import model_vocab_size, padded_vocab_size
from mb_models.training.vocab import padding_note


@pytest.mark.parametrize(
    ("vocab", "divisible_by", "tp", "padded"),
    [(4096, 128, 1, 4096), (4097, 128, 1, 4224), (50257, 128, 8, 51200), (1, 1, 1, 1), (100, 1, 3, 102)],
)
def test_padding_rounds_up_to_the_multiple(vocab, divisible_by, tp, padded):
    assert padded_vocab_size(vocab, divisible_by=divisible_by, tensor_parallel_size=tp) == padded


def test_padding_is_the_smallest_multiple_that_holds_the_vocabulary():
    for vocab in range(1, 200):
        padded = padded_vocab_size(vocab, divisible_by=8, tensor_parallel_size=3)
        assert vocab <= padded < vocab + 24
        assert padded % 24 == 0


@pytest.mark.parametrize("sizes", [(0, 128, 1), (10, 0, 1), (10, 128, 0)])
def test_sizes_must_be_positive(sizes):
    vocab, divisible_by, tp = sizes
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        padded_vocab_size(vocab, divisible_by=divisible_by, tensor_parallel_size=tp)


def size(vocab_size, tokenizer, tp=2):
    return model_vocab_size(
        vocab_size, tokenizer_vocab_size=tokenizer, divisible_by=128, tensor_parallel_size=tp
    )


def test_a_tokenizer_size_is_padded_and_a_given_size_is_kept():
    assert (size(None, 1000), size(1000, 1000), size(1002, 1000), size(1000, None)) == (
        1024,
        1000,
        1002,
        1000,
    )


@pytest.mark.parametrize(
    ("vocab_size", "tokenizer", "message"),
    [
        (None, None, "not set, and no tokenizer's size"),
        (999, 1000, "999 is smaller than the tokenizer's 1000"),
        (1001, 1000, "1001 does not divide by tensor_model_parallel_size=2"),
    ],
)
def test_invalid_sizes_are_rejected(vocab_size, tokenizer, message):
    with pytest.raises(ValueError, match=message):
        size(vocab_size, tokenizer)


def test_rows_without_a_token_are_counted():
    assert padding_note(None, tokenizer_vocab_size=250) is None
    assert padding_note(250, tokenizer_vocab_size=250) is None
    assert padding_note(256, tokenizer_vocab_size=250).startswith(
        "model.vocab_size=256: 6 rows of the embedding are"
    )
