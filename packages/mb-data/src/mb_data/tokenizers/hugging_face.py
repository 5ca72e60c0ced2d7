"""Adapter for `transformers`: Hugging Face folders without a `tokenizer.json`, and tokenizer options."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mb_data.errors import DataPathError, TokenizerError
from mb_data.tokenizers.base import Tokenizer
from mb_data.tokenizers.bpe import JsonTokenizer

_SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


def read_folder(
    folder: Path,
    *,
    include_special_tokens: bool,
    options: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
) -> Tokenizer:
    """Read tokenizer files in any form that `transformers` supports, such as a folder with vocab.json and merges.txt.

    Nothing is downloaded.

    Args:
        folder: Folder of tokenizer files, or a `tokenizer.json`.
        include_special_tokens: Add the tokens that the tokenizer places around each text.
        options: Keyword arguments for `transformers`, such as `add_bos_token=True` or `eos_token="<end>"`.
        trust_remote_code: Run the code in the folder, if its tokenizer is made of code.

    Returns:
        A `JsonTokenizer`; a `CodeTokenizer` if code was run whose tokenizer has no `tokenizer.json`.

    Raises:
        DataPathError: The file or folder does not exist.
        TokenizerError: The library cannot read the folder, cannot convert the tokenizer to a `tokenizer.json`, or the
            tokenizer has no end-of-document token; or it needs code in the folder, which is not trusted.
    """
    chosen = dict(options or {})
    if not folder.exists():
        raise DataPathError(
            f"{folder}: no such file or folder; a tokenizer is read from local files, and nothing is downloaded. "
            "Correct tokenizer.tokenizer_model."
        )
    try:
        tokenizer = (
            AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=trust_remote_code, **chosen
            )
            if folder.is_dir()
            else PreTrainedTokenizerFast(tokenizer_file=str(folder), **chosen)
        )
    except Exception as error:  # the readers of the library raise many types
        if not trust_remote_code and folder.is_dir() and any(folder.glob("*.py")):
            raise TokenizerError(
                f"{folder}: its tokenizer is Python code in this folder, which runs with your permissions, only with "
                "consent. If you trust its author, set tokenizer.trust_remote_code=true on the command line, or in "
                "code; a file cannot set it."
            ) from error
        raise TokenizerError(
            f"{folder}: transformers cannot read it as a tokenizer{_with(chosen)} ({error}). Save it with "
            "save_pretrained, which writes a tokenizer.json."
        ) from error
    if trust_remote_code and not isinstance(tokenizer, PreTrainedTokenizerFast):
        return CodeTokenizer(
            tokenizer, folder=folder, options=chosen, include_special_tokens=include_special_tokens
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise TokenizerError(
            f"{folder}: its tokenizer is a {type(tokenizer).__name__}, which is implemented in Python only and "
            "has no tokenizer.json. Use SentencePieceTokenizer with its .model, if it has one, or convert it."
        )
    settings: dict[str, Any] = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    if isinstance(tokenizer.chat_template, dict):
        named = tokenizer.chat_template.items()
        settings["chat_template"] = [{"name": name, "template": text} for name, text in named]
    elif tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    return JsonTokenizer(
        tokenizer.backend_tokenizer.to_str().encode(),
        source=folder,
        settings=json.dumps(settings).encode(),
        include_special_tokens=include_special_tokens,
    )


class CodeTokenizer:
    """Tokenizer of `transformers` that is implemented in Python, such as one of the code in its folder.

    Special tokens that occur in a text are encoded as ordinary text. It has no file that could be saved with a
    checkpoint, and does not encode chat templates. A copy in another process reads the folder again.

    Args:
        tokenizer: The tokenizer of the library.
        folder: The folder that it was read from.
        options: The keyword arguments that it was read with.
        include_special_tokens: Add the tokens that the tokenizer places around each text.

    Raises:
        TokenizerError: The tokenizer has no end-of-document token.
    """

    def __init__(
        self, tokenizer: Any, *, folder: Path, options: Mapping[str, Any], include_special_tokens: bool
    ) -> None:
        self._tokenizer, self._source = tokenizer, (folder, dict(options), include_special_tokens)
        self._ids: Mapping[str, int] = tokenizer.get_vocab()
        self.vocab_size: int = max(len(tokenizer), 1 + max(self._ids.values(), default=0))
        if tokenizer.eos_token_id is None:
            raise TokenizerError(
                f"{folder}: has no token that ends a document; documents could not be separated. Set eos_token in its "
                "tokenizer_config.json."
            )
        self.eod: int = tokenizer.eos_token_id
        self.fingerprint = f"code-{_digest(tokenizer, *self._source)}"

    def __reduce__(self) -> Any:
        return _read_again, self._source

    def token_id(self, token: str, /) -> int | None:
        """Return the id of a token; None if the vocabulary does not contain it."""
        return self._ids.get(token)

    def encode(self, text: str) -> list[int]:
        """Convert text to token ids, without an end-of-document token."""
        ids: list[int] = self._tokenizer(
            text, add_special_tokens=self._source[2], split_special_tokens=True, verbose=False
        )["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, including the text of special tokens."""
        text: str = self._tokenizer.decode(
            [int(number) for number in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def _read_again(folder: Path, options: Mapping[str, Any], include_special_tokens: bool) -> Tokenizer:
    return read_folder(
        folder, options=options, include_special_tokens=include_special_tokens, trust_remote_code=True
    )


def _digest(tokenizer: Any, folder: Path, options: Mapping[str, Any], include_special_tokens: bool) -> str:
    """Return a hash of the code, the vocabulary and the settings in a folder, and of how they are read."""
    named = {*tokenizer.vocab_files_names.values(), *_SETTINGS_FILES}
    files = sorted({*folder.glob("*.py"), *(folder / name for name in named)})
    described = hashlib.sha256(
        json.dumps([options, include_special_tokens], sort_keys=True, default=str).encode()
    )
    for file in filter(Path.is_file, files):
        described.update(f"\0{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return described.hexdigest()[:32]


def _with(options: Mapping[str, Any]) -> str:
    return f" with hf_tokenizer_kwargs={dict(options)}" if options else ""
