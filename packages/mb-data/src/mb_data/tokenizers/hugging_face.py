"""Adapter for `transformers`: Hugging Face folders without a `tokenizer.json`, and tokenizer options."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mb_data.errors import DataPathError, TokenizerError
from mb_data.tokenizers.bpe import JsonTokenizer


def read_folder(
    folder: Path, *, include_special_tokens: bool, options: Mapping[str, Any] | None = None
) -> JsonTokenizer:
    """Read tokenizer files in any form that `transformers` supports, such as a folder with vocab.json and merges.txt.

    Nothing is downloaded, and code in the folder is never run.

    Args:
        folder: Folder of tokenizer files, or a `tokenizer.json`.
        include_special_tokens: Add the tokens that the tokenizer places around each text.
        options: Keyword arguments for `transformers`, such as `add_bos_token=True` or `eos_token="<end>"`.

    Raises:
        DataPathError: The file or folder does not exist.
        TokenizerError: The library cannot read the folder, cannot convert the tokenizer to a `tokenizer.json`, or the
            tokenizer has no end-of-document token.
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
                str(folder), local_files_only=True, trust_remote_code=False, **chosen
            )
            if folder.is_dir()
            else PreTrainedTokenizerFast(tokenizer_file=str(folder), **chosen)
        )
    except Exception as error:  # the readers of the library raise many types
        raise TokenizerError(
            f"{folder}: transformers cannot read it as a tokenizer{_with(chosen)} ({error}). Save it with "
            "save_pretrained, which writes a tokenizer.json."
        ) from error
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


def _with(options: Mapping[str, Any]) -> str:
    return f" with hf_tokenizer_kwargs={dict(options)}" if options else ""
