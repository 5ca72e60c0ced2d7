"""The door to `sentencepiece`: tokenizers of a `.model` file."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from mb_data.errors import DataPathError, TokenizerError
from mb_data.tokenizers import decode_with_names

_EOD_NAMES = ("</s>", "<eod>", "<EOD>", "<|endoftext|>")


class PieceTokenizer:
    """A tokenizer read from SentencePiece's `.model` file; nothing is put around a text.

    What ends a document is the model's end of sequence, or an entry with one of the customary names.

    Args:
        path: The file.

    Raises:
        DataPathError: There is no such file.
        TokenizerError: The file is no model, or nothing in it ends a document.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataPathError(
                f"{path}: no such file; a SentencePiece tokenizer is read from its .model on this machine, and nothing "
                "is downloaded. Correct tokenizer.tokenizer_model."
            )
        content = path.read_bytes()
        self._model = _parse(content, path)
        self.vocab_size: int = self._model.get_piece_size()
        self.files: Mapping[str, bytes] = {"tokenizer.model": content}
        self.fingerprint = f"pieces-{hashlib.sha256(content).hexdigest()[:32]}"
        end = self._model.eos_id() if self._model.eos_id() >= 0 else None
        ends = (end, *map(self.token_id, _EOD_NAMES))
        self.eod: int = next((number for number in ends if number is not None), -1)
        if self.eod < 0:
            raise TokenizerError(
                f"{path}: has no token that ends a document (no end of sequence, and none of {', '.join(_EOD_NAMES)}); "
                "documents could not be told apart. Train it with one."
            )

    def token_id(self, token: str, /) -> int | None:
        """Return the id of a piece; None where there is no such piece."""
        number: int = self._model.piece_to_id(token)
        return number if self._model.id_to_piece(number) == token else None

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without an end of document."""
        ids: list[int] = self._model.encode(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, control tokens written out; ids behind the vocabulary are left out.

        SentencePiece's own ways stay: by most models several blanks are one, and the first of a text is none.
        """
        inside = [int(number) for number in ids if number < self.vocab_size]
        names = {
            number: self._model.id_to_piece(number)
            for number in set(inside)
            if self._model.is_control(number)
        }
        return decode_with_names(inside, names, decode=self._model.decode)


def _parse(content: bytes, path: Path) -> Any:
    try:
        if not content:
            raise RuntimeError("the file is empty")  # the library takes it, and fails at the first call
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise TokenizerError(f"{path}: is no SentencePiece model ({error}). Give a .model file.") from error
