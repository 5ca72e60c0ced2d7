"""Tokenizers in folders such as checkpoints: which one a run on saved weights uses. Standard library only."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mb_data.tokenizers.config import TokenizerConfig
from mb_schema.paths import exists

TYPE, MODEL = "tokenizer_type", "tokenizer_model"
HUGGING_FACE = "HuggingFaceTokenizer"
SAVED_TYPES = MappingProxyType(
    {
        "tokenizer.json": HUGGING_FACE,
        "tokenizer.model": "SentencePieceTokenizer",
        "tiktoken.json": "TikTokenizer",
    }
)
"""Names of saved tokenizer files, and the type that reads each. Tokenizers trained with a run and those of GPT-2's two
files are saved in Hugging Face's format.
"""

_ADDITIONS = ("special_tokens", "vocab_extra_ids", "tokenizer_hf_no_include_special_tokens")
_TIKTOKEN_SETTINGS = ("vocab_size", "tiktoken_pattern", "tiktoken_num_special_tokens")

SectionReader = Callable[[Path], Mapping[str, Any]]
"""Function that returns the tokenizer section that is saved in a folder; empty if there is none."""


def saved_tokenizer_file(folder: Path) -> Path | None:
    """Return the tokenizer file in a folder, if any."""
    return next((folder / name for name in SAVED_TYPES if (folder / name).is_file()), None)


def saved_tokenizer_settings(folder: Path, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that read the tokenizer saved in a folder; empty if there is none.

    Args:
        folder: The folder.
        section: Tokenizer section that was saved with the folder. Settings that determine token ids in addition to the
            file are taken from it.
    """
    file = saved_tokenizer_file(folder)
    if file is None:
        return {}
    return _with_additions(section, kind=SAVED_TYPES[file.name], model=file.as_posix())


def original_tokenizer_settings(section: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tokenizer settings that a run started with, from its saved section; None if it names no file."""
    model = section.get(MODEL)
    if not isinstance(model, str):
        return None
    return _with_additions(section, kind=section.get(TYPE) or HUGGING_FACE, model=model)


def tokenizer_settings_of_weights(
    folders: Sequence[Path],
    *,
    original: Mapping[str, Any] | None,
    is_resumed: bool,
    read_section: SectionReader,
) -> Mapping[str, Any]:
    """Return the tokenizer settings of a run that starts from saved weights, so that token ids keep their meaning.

    A resumed run keeps the tokenizer it started with, also if that folder is deleted or no longer configured;
    `find_saved_tokenizer` then locates its files.

    Args:
        folders: Folders of the weights, newest first.
        original: Settings of the tokenizer that the run started with, if it took one from weights; None for a new run.
        is_resumed: Whether the run resumes from a checkpoint of its own.
        read_section: Returns the tokenizer section that is saved in a folder.

    Returns:
        The original settings, else those of the newest folder with a tokenizer; empty if there is none.
    """
    offering = [folder for folder in folders if saved_tokenizer_file(folder) is not None]
    if original is not None:
        first = Path(original[MODEL]).parent
        if first in offering:
            return saved_tokenizer_settings(first, read_section(first))
        if is_resumed:
            return original
    return saved_tokenizer_settings(offering[0], read_section(offering[0])) if offering else {}


def find_saved_tokenizer(
    config: TokenizerConfig, folders: Iterable[Path], *, read_section: SectionReader
) -> Path | None:
    """Return the first folder that has saved the configured tokenizer, if the configured files are missing.

    Args:
        config: The tokenizer section.
        folders: Checkpoints of the run, newest first.
        read_section: Returns the tokenizer section that is saved in a folder.

    Returns:
        The folder, for `load_saved_tokenizer`; None if the configured files exist, or if no folder has saved the
        tokenizer under these names.
    """
    configured = (config.tokenizer_type, config.tokenizer_model, config.vocab_file, config.merge_file)
    if all(name is None or exists(name) for name in configured[1:]):
        return None
    for folder in folders:
        section = read_section(folder)
        named = tuple(section.get(name) for name in (TYPE, MODEL, "vocab_file", "merge_file"))
        if named == configured and saved_tokenizer_file(folder) is not None:
            return folder
    return None


def _with_additions(section: Mapping[str, Any], *, kind: str, model: str) -> dict[str, Any]:
    """Return type and file of a tokenizer with the settings of a saved section that determine its token ids."""
    names = (*_ADDITIONS, *(_TIKTOKEN_SETTINGS if kind == SAVED_TYPES["tiktoken.json"] else ()))
    return {TYPE: kind, MODEL: model} | {name: section[name] for name in names if section.get(name)}
