"""Loading of tokenizers from a section or a path, and saving of their files."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mb_data.chat.encoding import TokenizerWithTemplate
from mb_data.chat.prompt_formats import PROMPT_FORMATS
from mb_data.chat.template import TEMPLATE_FILE, read_chat_template
from mb_data.errors import TokenizerError, TokenizerLibraryError
from mb_data.libraries import import_library
from mb_data.tokenizers.base import (
    ByteTokenizer,
    ExtendedTokenizer,
    NullTokenizer,
    SentinelTokenizer,
    Tokenizer,
    unwrap_tokenizer,
)
from mb_data.tokenizers.config import TokenizerConfig
from mb_data.tokenizers.rules import IDLE_OPTIONS, SENTENCEPIECE
from mb_data.tokenizers.saved_tokenizer import SAVED_TYPES

_ADAPTERS = {
    "bpe": "tokenizers",
    "hugging_face": "transformers",
    "sentencepiece": "sentencepiece",
    "tiktoken": "tiktoken",
}
"""Adapter modules -> the library that they import, which is also the extra that installs it."""

TOKENIZER_FILES = (*SAVED_TYPES, "tokenizer_config.json", TEMPLATE_FILE)
"""Names of the files in which tokenizers are saved. A tokenizer uses some of them."""


@runtime_checkable
class FileBackedTokenizer(Protocol):
    """Tokenizer that was read from files."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """Names and contents of files from which the tokenizer can be loaded again."""


def load_tokenizer(source: TokenizerConfig | str | Path) -> Tokenizer:
    """Load the tokenizer that a configuration section or a path describes.

    Args:
        source: A configuration section, whose `special_tokens` and `vocab_extra_ids` are added; the path of a
            `tokenizer.json`, of a Hugging Face folder, or of a SentencePiece `.model`; or `ByteTokenizer`.

    Raises:
        DataPathError: A file does not exist.
        TokenizerError: The type is not supported, a setting is missing or invalid, or the file is not a tokenizer with
            an end-of-document token.
        TokenizerLibraryError: The library that reads the file is not installed.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if is_byte_tokenizer(source):
            return ByteTokenizer()
        if path.suffix == ".model":
            return _import_adapter("sentencepiece").PieceTokenizer(path)  # type: ignore[no-any-return]
        return _hugging_face(path, include_special_tokens=True)
    return with_additions(_load_described(source), source)


def is_byte_tokenizer(source: str | Path) -> bool:
    """Return whether `load_tokenizer` takes a path for the name of the tokenizer that requires no file."""
    return str(source) == "ByteTokenizer" and not Path(source).exists()


def with_sentinels(tokenizer: Tokenizer, config: TokenizerConfig) -> Tokenizer:
    """Add the sentinels that the `vocab_extra_ids` of a section request.

    Raises:
        TokenizerError: `vocab_extra_ids` is negative.
    """
    number = config.vocab_extra_ids
    return SentinelTokenizer(tokenizer, sentinels=number) if number else tokenizer


def with_additions(tokenizer: Tokenizer, config: TokenizerConfig) -> Tokenizer:
    """Add the chat template and the `special_tokens` of a section, followed by its `vocab_extra_ids`.

    A TikTokenizer already contains its special tokens, which are its first entries.

    Raises:
        DataPathError: `chat_template_path` does not exist.
        TokenizerError: A special token is empty or occurs twice, or `vocab_extra_ids` is negative.
    """
    template = read_chat_template(config.chat_template, config.chat_template_path)
    if config.tokenizer_prompt_format is not None:
        template = PROMPT_FORMATS[config.tokenizer_prompt_format]
    if template is not None:
        tokenizer = TokenizerWithTemplate(tokenizer, template)
    if config.special_tokens and config.tokenizer_type != "TikTokenizer":
        tokenizer = ExtendedTokenizer(tokenizer, config.special_tokens)
    return with_sentinels(tokenizer, config)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Save the files of a tokenizer in a folder, without added tokens. A tokenizer without files saves nothing."""
    tokenizer = unwrap_tokenizer(tokenizer)
    if isinstance(tokenizer, FileBackedTokenizer):
        for name, content in tokenizer.files.items():
            (folder / name).write_bytes(content)


def load_saved_tokenizer(folder: Path | None, config: TokenizerConfig) -> Tokenizer:
    """Load a tokenizer from the files that `save_tokenizer` wrote, with the added tokens of its section.

    Without a folder, or without such files in it, load the tokenizer that the section describes.

    Raises:
        The exceptions of `load_tokenizer`.
    """
    kind = config.tokenizer_type
    family = "SentencePieceTokenizer" if kind in SENTENCEPIECE else kind
    name = next((name for name, saved in SAVED_TYPES.items() if saved == family), "tokenizer.json")
    if folder is None or not (file := folder / name).is_file():
        return load_tokenizer(config)
    if kind == "TikTokenizer":
        return with_additions(_tiktoken(file, config), config)
    return with_additions(
        load_tokenizer(file)
        if kind in SENTENCEPIECE
        else _hugging_face(file, include_special_tokens=not config.tokenizer_hf_no_include_special_tokens),
        config,
    )


def _load_described(source: TokenizerConfig) -> Tokenizer:
    """Load the tokenizer that a section describes.

    Raises:
        TokenizerError: The type is not supported, or a field that it needs is not set.
    """
    kind, model = source.tokenizer_type, source.tokenizer_model
    if kind == "ByteTokenizer":
        return ByteTokenizer()
    if kind == "NullTokenizer" and source.vocab_size is not None:
        return NullTokenizer(source.vocab_size, eod=source.null_tokenizer_eod_id)
    if kind == "GPT2BPETokenizer" and source.vocab_file and source.merge_file:
        tokenizer: Tokenizer = _import_adapter("bpe").load_gpt2_bpe(
            Path(source.vocab_file), Path(source.merge_file)
        )
        return tokenizer
    if kind == "HuggingFaceTokenizer" and model:
        included = not source.tokenizer_hf_no_include_special_tokens
        read = (source.hf_tokenizer_kwargs or {}).items()
        options = {name: value for name, value in read if name not in IDLE_OPTIONS}
        return _hugging_face(
            Path(model),
            include_special_tokens=included,
            options=options,
            trust_remote_code=source.trust_remote_code,
        )
    if kind in SENTENCEPIECE and model:
        piece: Tokenizer = _import_adapter("sentencepiece").PieceTokenizer(Path(model))
        return piece
    if kind == "TikTokenizer" and model:
        return _tiktoken(Path(model), source)
    raise TokenizerError(
        f"tokenizer: cannot load type {kind!r} (tokenizer_model={model!r}, vocab_size={source.vocab_size}, "
        f"vocab_file={source.vocab_file!r}, merge_file={source.merge_file!r}); ByteTokenizer needs nothing, "
        "NullTokenizer a vocab_size, GPT2BPETokenizer a vocab_file and a merge_file, HuggingFaceTokenizer, "
        "TikTokenizer and the SentencePiece types a tokenizer_model, and other types are not supported. Set them."
    )


def _hugging_face(
    path: Path,
    *,
    include_special_tokens: bool,
    options: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
) -> Tokenizer:
    """Read a `tokenizer.json` or a folder.

    With options or trusted code, or for a folder without a `tokenizer.json`, `transformers` reads the tokenizer first.
    """
    tokenizer: Tokenizer
    if options or trust_remote_code:
        library = _import_adapter("hugging_face")
        tokenizer = library.read_folder(
            path,
            include_special_tokens=include_special_tokens,
            options=options,
            trust_remote_code=trust_remote_code,
        )
    else:
        other_form = path.is_dir() and not (path / "tokenizer.json").exists() and any(path.glob("*token*"))
        adapter = _import_adapter("hugging_face" if other_form else "bpe")
        open_tokenizer = adapter.read_folder if other_form else adapter.FileTokenizer
        tokenizer = open_tokenizer(path, include_special_tokens=include_special_tokens)
    return tokenizer


def _tiktoken(path: Path, config: TokenizerConfig) -> Tokenizer:
    tokenizer: Tokenizer = _import_adapter("tiktoken").TikTokenizer(
        path,
        vocab_size=config.vocab_size,
        pattern=config.tiktoken_pattern or "v2",
        reserved=config.tiktoken_num_special_tokens,
        special_tokens=config.special_tokens,
    )
    return tokenizer


def _import_adapter(name: str) -> Any:
    """Import an adapter module on demand, so that a library is required only by the tokenizers that use it."""
    return import_library(
        f"mb_data.tokenizers.{name}",
        where="tokenizer",
        purpose="reads this kind of tokenizer",
        extra=_ADAPTERS[name],
        library=_ADAPTERS[name],
        error=TokenizerLibraryError,
    )


def copy_tokenizer_files(source: Path, target: Path) -> None:
    """Copy the tokenizer files of a folder that exist, such as those of a checkpoint."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
