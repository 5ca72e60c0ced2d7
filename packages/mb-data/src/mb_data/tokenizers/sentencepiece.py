"""Adapter for `sentencepiece`: tokenizers of `.model` files."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from mb_data.errors import TokenizerError
from mb_data.tokenizers.base import decode_with_names, require_local_file

_EOD_NAMES = ("</s>", "<eod>", "<EOD>", "<|endoftext|>")


class PieceTokenizer:
    """Tokenizer read from a SentencePiece `.model` file. No tokens are added around a text.

    The end-of-document token is the end-of-sequence token of the model, or an entry with one of the known names.

    Args:
        path: Path of the file.

    Raises:
        DataPathError: The file does not exist.
        TokenizerError: The file is not a SentencePiece model, or it has no end-of-document token.
    """

    def __init__(self, path: Path) -> None:
        content = require_local_file(
            path,
            reader="a SentencePiece tokenizer is read from a local .model file",
            fix="Correct tokenizer.tokenizer_model.",
        ).read_bytes()
        self._model = _parse(content, path)
        self.vocab_size: int = self._model.get_piece_size()
        self.files: Mapping[str, bytes] = {"tokenizer.model": content}
        self.fingerprint = f"pieces-{hashlib.sha256(content).hexdigest()[:32]}"
        eos = self._model.eos_id() if self._model.eos_id() >= 0 else None
        candidates = (eos, *map(self.token_id, _EOD_NAMES))
        self.eod: int = next((token_id for token_id in candidates if token_id is not None), -1)
        if self.eod < 0:
            raise TokenizerError(
                f"{path}: has no token that ends a document (no end of sequence, and none of {', '.join(_EOD_NAMES)}); "
                "documents could not be separated. Train the model with one."
            )

    def token_id(self, token: str, /) -> int | None:
        """Return the id of a piece; None if it does not exist."""
        token_id: int = self._model.piece_to_id(token)
        return token_id if self._model.id_to_piece(token_id) == token else None

    def encode(self, text: str) -> list[int]:
        """Convert text to token ids, without an end-of-document token."""
        ids: list[int] = self._model.encode(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, including the text of control tokens. Ids beyond the vocabulary are skipped.

        The normalization of SentencePiece applies: most models collapse consecutive spaces and drop a leading space.
        """
        known_ids = [int(token_id) for token_id in ids if token_id < self.vocab_size]
        names = {
            token_id: self._model.id_to_piece(token_id)
            for token_id in set(known_ids)
            if self._model.is_control(token_id)
        }
        return decode_with_names(known_ids, names, decode=self._model.decode)


def _parse(content: bytes, path: Path) -> Any:
    try:
        if not content:
            raise RuntimeError("the file is empty")  # the library accepts it, and fails at the first call
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise TokenizerError(f"{path}: is not a SentencePiece model ({error}). Use a .model file.") from error
