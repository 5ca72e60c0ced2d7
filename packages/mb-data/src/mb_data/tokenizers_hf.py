"""The door to `transformers`: folders of Hugging Face without a `tokenizer.json`, and options of its tokenizers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mb_data.bpe import JsonTokenizer
from mb_data.errors import DataPathError, TokenizerError


def read_folder(
    folder: Path, *, include_special_tokens: bool, options: Mapping[str, Any] | None = None
) -> JsonTokenizer:
    """Read tokenizer files in any form that `transformers` knows, such as a folder with vocab.json and merges.txt.

    Nothing is downloaded, and no code that comes with the files is run.

    Args:
        folder: Its tokenizer files; or a `tokenizer.json`.
        include_special_tokens: Put the tokens around each text that the folder asks for.
        options: Keyword arguments for `transformers`, as in `add_bos_token=True` or `eos_token="<end>"`.

    Raises:
        DataPathError: There is no such file or folder.
        TokenizerError: The library cannot read the folder, has no form of the tokenizer that could stand in a
            `tokenizer.json`, or nothing ends a document.
    """
    chosen = dict(options or {})
    if not folder.exists():
        raise DataPathError(
            f"{folder}: no such file or folder; a tokenizer is read from this machine, and nothing is downloaded. "
            "Correct tokenizer.tokenizer_model."
        )
    try:
        found = (
            AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, **chosen
            )
            if folder.is_dir()
            else PreTrainedTokenizerFast(tokenizer_file=str(folder), **chosen)
        )
    except Exception as error:  # whatever its many readers raise
        raise TokenizerError(
            f"{folder}: transformers cannot read it as a tokenizer{_with(chosen)} ({error}). Save it with "
            "save_pretrained, which writes a tokenizer.json."
        ) from error
    backend = getattr(found, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(
            f"{folder}: its tokenizer is a {type(found).__name__}, which runs in Python alone; there is no "
            "tokenizer.json of it. Use SentencePieceTokenizer with its .model, if it has one, or convert it."
        )
    settings = {} if found.eos_token is None else {"eos_token": str(found.eos_token)}
    return JsonTokenizer(
        backend.to_str().encode(),
        source=folder,
        settings=json.dumps(settings).encode(),
        include_special_tokens=include_special_tokens,
    )


def _with(options: Mapping[str, Any]) -> str:
    return f" with hf_tokenizer_kwargs={dict(options)}" if options else ""
