"""The tokenizer that a section or a path names, the libraries that read it, and the files it is kept in."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mb_data.errors import TokenizerError, TokenizerLibraryError
from mb_data.tokenizer_config import TokenizerConfig
from mb_data.tokenizer_rules import SENTENCEPIECE
from mb_data.tokenizers import (
    ByteTokenizer,
    ExtendedTokenizer,
    NullTokenizer,
    SentinelTokenizer,
    Tokenizer,
    unwrap_tokenizer,
)

_ADAPTERS = {
    "bpe": ("tokenizers", "tokenizers"),
    "tokenizers_hf": ("transformers", "transformers"),
    "tokenizers_sentencepiece": ("sentencepiece", "sentencepiece"),
    "tokenizers_tiktoken": ("tiktoken", "tiktoken"),
}
"""Files that need a library, with its name and the extra that brings it."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tiktoken.json")
"""Names of the files in which tokenizers are kept, some of which there are."""

_SAVED_AS = {"TikTokenizer": "tiktoken.json"} | dict.fromkeys(SENTENCEPIECE, "tokenizer.model")
"""What the file of a tokenizer type is called where it is kept; others are kept as `tokenizer.json`."""


@runtime_checkable
class FileBackedTokenizer(Protocol):
    """A tokenizer that came from files."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """Names and contents of files from which it can be made again."""


def load_tokenizer(source: TokenizerConfig | str | Path) -> Tokenizer:
    """Make the tokenizer that a configuration or a path describes.

    Args:
        source: A configuration section, whose `special_tokens` and `vocab_extra_ids` are added; or the path of a
            `tokenizer.json`, of a folder as Hugging Face keeps it, or of a SentencePiece `.model`.

    Raises:
        DataPathError: A file is not there.
        TokenizerError: The type is not supported, a setting is missing, or the file is not a tokenizer with an end of
            document; or fewer than 0 sentinels are asked for.
        TokenizerLibraryError: The library that reads the file is not installed.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix == ".model":
            return _import_adapter("tokenizers_sentencepiece").PieceTokenizer(path)  # type: ignore[no-any-return]
        return _hugging_face(path, include_special_tokens=True)
    return with_additions(_load_described(source), source)


def with_sentinels(tokenizer: Tokenizer, config: TokenizerConfig) -> Tokenizer:
    """Add the `vocab_extra_ids` that a section asks for, if any.

    Raises:
        TokenizerError: It asks for fewer than 0.
    """
    number = config.vocab_extra_ids
    return SentinelTokenizer(tokenizer, sentinels=number) if number else tokenizer


def with_additions(tokenizer: Tokenizer, config: TokenizerConfig) -> Tokenizer:
    """Add the `special_tokens` that a section asks for, and behind them its `vocab_extra_ids`.

    TikToken's special tokens are not behind its others, and there already.

    Raises:
        TokenizerError: A special token has no name or comes twice; or fewer than 0 sentinels.
    """
    if config.special_tokens and config.tokenizer_type != "TikTokenizer":
        tokenizer = ExtendedTokenizer(tokenizer, config.special_tokens)
    return with_sentinels(tokenizer, config)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files of a tokenizer into a folder, without what a section added; nothing for one without files."""
    tokenizer = unwrap_tokenizer(tokenizer)
    if isinstance(tokenizer, FileBackedTokenizer):
        for name, content in tokenizer.files.items():
            (folder / name).write_bytes(content)


def load_saved_tokenizer(folder: Path, config: TokenizerConfig) -> Tokenizer:
    """Load a tokenizer from the files that `save_tokenizer` wrote, with what its section adds.

    Without them, the one that the section names.

    Raises:
        What `load_tokenizer` does.
    """
    kind = config.tokenizer_type
    file = folder / _SAVED_AS.get(kind or "", "tokenizer.json")
    if not file.is_file():
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
    kind, model = source.tokenizer_type, source.tokenizer_model
    if kind == "ByteTokenizer":
        return ByteTokenizer()
    if kind == "NullTokenizer" and source.vocab_size is not None:
        return NullTokenizer(source.vocab_size, eod=source.null_tokenizer_eod_id)
    if kind == "GPT2BPETokenizer" and source.vocab_file and source.merge_file:
        made: Tokenizer = _import_adapter("bpe").load_gpt2_bpe(
            Path(source.vocab_file), Path(source.merge_file)
        )
        return made
    if kind == "HuggingFaceTokenizer" and model:
        included = not source.tokenizer_hf_no_include_special_tokens
        options = source.hf_tokenizer_kwargs
        return _hugging_face(Path(model), include_special_tokens=included, options=options)
    if kind in SENTENCEPIECE and model:
        piece: Tokenizer = _import_adapter("tokenizers_sentencepiece").PieceTokenizer(Path(model))
        return piece
    if kind == "TikTokenizer" and model:
        return _tiktoken(Path(model), source)
    raise TokenizerError(
        f"tokenizer: cannot load type {kind!r} (tokenizer_model={model!r}, vocab_size={source.vocab_size}, "
        f"vocab_file={source.vocab_file!r}, merge_file={source.merge_file!r}); ByteTokenizer needs nothing, "
        "NullTokenizer a vocab_size, GPT2BPETokenizer a vocab_file and a merge_file, HuggingFaceTokenizer, "
        "TikTokenizer and the SentencePiece types a tokenizer_model, and no other type can be read. Set them."
    )


def _hugging_face(
    path: Path, *, include_special_tokens: bool, options: Mapping[str, Any] | None = None
) -> Tokenizer:
    """Read a `tokenizer.json`, or a folder; one without it, or with options, through the library that can make one."""
    tokenizer: Tokenizer
    if options:
        library = _import_adapter("tokenizers_hf")
        tokenizer = library.read_folder(path, include_special_tokens=include_special_tokens, options=options)
    else:
        other_form = path.is_dir() and not (path / "tokenizer.json").exists() and any(path.glob("*token*"))
        door = _import_adapter("tokenizers_hf") if other_form else _import_adapter("bpe")
        read = door.read_folder if other_form else door.FileTokenizer
        tokenizer = read(path, include_special_tokens=include_special_tokens)
    return tokenizer


def _tiktoken(path: Path, config: TokenizerConfig) -> Tokenizer:
    tokenizer: Tokenizer = _import_adapter("tokenizers_tiktoken").TikTokenizer(
        path,
        vocab_size=config.vocab_size,
        pattern=config.tiktoken_pattern or "v2",
        reserved=config.tiktoken_num_special_tokens,
        special_tokens=config.special_tokens,
    )
    return tokenizer


def _import_adapter(name: str) -> Any:
    """Import the file that needs a library; only those who read such a tokenizer need it."""
    library, extra = _ADAPTERS[name]
    try:
        return import_module(f"mb_data.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise TokenizerLibraryError(
            f"tokenizer: the library {library} is not installed, which reads this kind of tokenizer. "
            f'Install it: pip install "mb-data[{extra}]".'
        ) from error
