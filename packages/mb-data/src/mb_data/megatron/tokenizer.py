"""Adapter of this package's tokenizers to the interface of Megatron Core's datasets."""

from collections import OrderedDict
from collections.abc import Sequence

from megatron.core.tokenizers import MegatronTokenizerBase

from mb_data.tokenizers.base import Tokenizer


class MegatronTokenizer(MegatronTokenizerBase):  # type: ignore[misc] # Megatron Core has no types
    """Adapter of a tokenizer of this package to the interface that Megatron's datasets use.

    There is no padding token (`pad` is -1), so no token of a document is mistaken for padding.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(path="", config={})
        self.wrapped = tokenizer
        self.unique_identifiers = OrderedDict(
            {"class": type(tokenizer).__qualname__, "fingerprint": tokenizer.fingerprint}
        )

    def tokenize(self, text: str) -> list[int]:
        """Convert text to token ids."""
        return self.wrapped.encode(text)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Convert token ids to text."""
        return self.wrapped.decode(ids)

    @property
    def vocab(self) -> dict[str, int]:
        """Text of each entry with its id. Entries with equal text (parts of characters) appear once."""
        return {self.wrapped.decode([token]): token for token in range(self.vocab_size)}

    @property
    def vocab_size(self) -> int:
        """Number of entries."""
        return self.wrapped.vocab_size

    @property
    def eod(self) -> int:
        """End-of-document id."""
        return self.wrapped.eod

    @property
    def pad(self) -> int:
        """Padding id: -1, because no token is padding."""
        return -1

    def apply_chat_template(self) -> None:
        """Raise NotImplementedError, because tokenizers of this package have no chat template."""
        raise NotImplementedError(
            "apply_chat_template: the tokenizer has no chat template. Format the text before it is tokenized."
        )


def as_megatron(tokenizer: Tokenizer) -> MegatronTokenizer:
    """Wrap a tokenizer for Megatron's datasets. Their caches identify it by its content."""
    return MegatronTokenizer(tokenizer)
