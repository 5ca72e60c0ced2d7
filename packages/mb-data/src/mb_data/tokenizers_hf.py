"""The door to `transformers`, for folders of Hugging Face that have no `tokenizer.json`."""

import json
from pathlib import Path

from transformers import AutoTokenizer

from mb_data.bpe import JsonTokenizer
from mb_data.errors import TokenizerError


def read_folder(folder: Path, *, include_special_tokens: bool) -> JsonTokenizer:
    """Read a folder of tokenizer files in any form that `transformers` knows, such as vocab.json and merges.txt.

    Nothing is downloaded, and no code that comes with the files is run.

    Args:
        folder: Its tokenizer files.
        include_special_tokens: Put the tokens around each text that the folder asks for.

    Raises:
        TokenizerError: The library cannot read the folder, has no form of the tokenizer that could stand in a
            `tokenizer.json`, or nothing ends a document.
    """
    try:
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever its many readers raise
        raise TokenizerError(
            f"{folder}: transformers cannot read it as a tokenizer ({error}). Save it with save_pretrained, which "
            "writes a tokenizer.json."
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
        place=folder,
        settings=json.dumps(settings).encode(),
        include_special_tokens=include_special_tokens,
    )
