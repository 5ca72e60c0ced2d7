"""Megatron Core's GPT dataset, whose tokens are checked when they are read."""

from typing import Any

from megatron.core.datasets import gpt_dataset
from megatron.core.datasets.utils import Split

from mb_data.errors import IndexedFormatError
from mb_data.loading.document_parts import document_parts


class GPTDataset(gpt_dataset.GPTDataset):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's dataset, which rejects tokens beyond the vocabulary of its tokenizer, and names their document.

    It has the name of its base, because Megatron includes the class name in the names of cached indices.
    """

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        if self.index_split is Split.valid and not self.config.drop_last_partial_validation_sequence:
            # Megatron keeps the loss mask of the first sample that a process reads, and masks the padding of a
            # shorter sequence in it: all others would then lose the same tokens.
            self.masks_and_position_ids_are_cacheable = False

    def _query_document_sample_shuffle_indices(self, idx: int) -> Any:
        """Return the tokens of a sample, and what Megatron returns with them.

        Raises:
            IndexedFormatError: A token is not in the vocabulary.
        """
        result = super()._query_document_sample_shuffle_indices(idx)
        tokens, limit = result[0], self.config.tokenizer.vocab_size
        if limit is not None and tokens.size and tokens.max() >= limit:
            self._reject(idx, tokens, limit)
        return result

    def _reject(self, idx: int, tokens: Any, limit: int) -> None:
        position = int((tokens >= limit).argmax())
        start = 0
        for part in document_parts(self, idx):
            if position < start + part.tokens:
                where = (
                    f"{part.source}.bin: token {part.offset + position - start} of document {part.document}"
                )
                raise IndexedFormatError(
                    f"{where} is {int(tokens[position])}, but the vocabulary has {limit} entries. The file was written "
                    "with another tokenizer, or was overwritten. Use its tokenizer, or build the file again."
                )
            start += part.tokens
