"""Tokenizer of the checkpoint from which a run starts. No torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mb_checkpoint import CheckpointConfig
from mb_checkpoint.layout import RUN_CONFIG, is_iteration_directory, non_persistent_roots, step_of, steps_in
from mb_config import Provenance
from mb_trainer.config import ConfigContainer

KIND, MODEL = "tokenizer_type", "tokenizer_model"
RELEASE = "release"
HUGGING_FACE = "HuggingFaceTokenizer"
KEPT = {
    "tokenizer.json": HUGGING_FACE,
    "tokenizer.model": "SentencePieceTokenizer",
    "tiktoken.json": "TikTokenizer",
}
"""Tokenizer files of a checkpoint, and the type that reads each. Tokenizers trained with the run and those of GPT-2's
two files are saved in Hugging Face's format.
"""

ADDED = ("special_tokens", "vocab_extra_ids", "tokenizer_hf_no_include_special_tokens")
OF_TIKTOKEN = ("vocab_size", "tiktoken_pattern", "tiktoken_num_special_tokens")
"""Settings that determine token ids in addition to the file: for every type, and for one type."""

ORIGIN = "resolve: the tokenizer of checkpoint.pretrained_checkpoint"


def take_tokenizer(config: ConfigContainer, *, run_config: Path, provenance: Provenance) -> None:
    """Use the tokenizer of the weights from which a run starts, so that token ids keep their meaning.

    A tokenizer set by the user is kept, and so is any tokenizer if the checkpoint has saved none. A resumed run keeps
    its original tokenizer, also if that checkpoint is deleted or no longer configured: `kept_by_run` then locates
    its files.

    Args:
        config: its tokenizer is set, except for settings of the user.
        run_config: saved settings in the run folder; may be missing.
        provenance: records the changes.
    """
    weights, section = config.checkpoint.pretrained_checkpoint, config.tokenizer
    chosen = any(provenance.by_user(f"tokenizer.{name}") for name in (KIND, MODEL))
    if chosen or section.tokenizer_type not in (None, HUGGING_FACE):
        return
    taken = settings_to_take(weights, config.checkpoint, begun=begun_with(run_config))
    for name, value in taken.items():
        if not provenance.by_user(f"tokenizer.{name}"):
            setattr(section, name, value)
            provenance.note(f"tokenizer.{name}", ORIGIN)


def settings_to_take(
    weights: str | None, checkpoint: CheckpointConfig, *, begun: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return the tokenizer settings that a run takes: the original ones, else the newest; empty if there are none."""
    folders = [] if weights is None else folders_of(Path(weights))
    offering = [folder for folder in folders if kept_file(folder) is not None]
    if begun is not None and Path(begun[MODEL]).parent in offering:
        return offered(Path(begun[MODEL]).parent)
    if begun is not None and own_folders(checkpoint):
        return begun
    return offered(offering[0]) if offering else {}


def kept_by_run(config: ConfigContainer) -> Path | None:
    """Return the newest checkpoint of a run that has saved its tokenizer, if the configured files are missing.

    None if they exist, or if no checkpoint has saved the tokenizer under these names.
    """
    section = config.tokenizer
    wanted = (section.tokenizer_type, section.tokenizer_model, section.vocab_file, section.merge_file)
    if all(name is None or Path(name).exists() for name in wanted[1:]):
        return None
    for folder in own_folders(config.checkpoint):
        saved = section_of(folder / RUN_CONFIG, "tokenizer")
        named = tuple(saved.get(name) for name in (KIND, MODEL, "vocab_file", "merge_file"))
        if named == wanted and kept_file(folder) is not None:
            return folder
    return None


def where_tokenizer(config: ConfigContainer) -> str | None:
    """Return the message that the tokenizer is read from a checkpoint of the run, if it is."""
    kept, section = kept_by_run(config), config.tokenizer
    if kept is None:
        return None
    return f"tokenizer: {section.tokenizer_model or section.vocab_file} is gone; read as {kept} has kept it"


def begun_with(run_config: Path) -> dict[str, Any] | None:
    """Return the tokenizer that a run took from weights at its start; None if it took none, or has not started."""
    section = section_of(run_config, "tokenizer")
    model = section.get(MODEL)
    if not isinstance(model, str) or not is_in_checkpoint(Path(model), section_of(run_config, "checkpoint")):
        return None
    return with_additions(section, kind=section.get(KIND) or HUGGING_FACE, model=model)


def is_in_checkpoint(file: Path, saved: Mapping[str, Any]) -> bool:
    """Return by its name whether a file is or was part of a checkpoint; a checkpoint of weights may have any name."""
    folder, weights = file.parent, saved.get("pretrained_checkpoint")
    return step_of(folder) is not None or folder.name == RELEASE or folder.as_posix() == weights


def offered(folder: Path) -> dict[str, Any]:
    """Return the tokenizer settings that a checkpoint has saved."""
    file = kept_file(folder)
    if file is None:
        return {}
    return with_additions(
        section_of(folder / RUN_CONFIG, "tokenizer"), kind=KEPT[file.name], model=file.as_posix()
    )


def with_additions(section: Mapping[str, Any], *, kind: str, model: str) -> dict[str, Any]:
    """Return the type and the file of a tokenizer with the additional settings of a saved section."""
    names = (*ADDED, *(OF_TIKTOKEN if kind == KEPT["tiktoken.json"] else ()))
    return {KIND: kind, MODEL: model} | {name: section[name] for name in names if section.get(name)}


def kept_file(folder: Path) -> Path | None:
    """Return the tokenizer file that a checkpoint has saved, if any."""
    return next((folder / name for name in KEPT if (folder / name).is_file()), None)


def folders_of(weights: Path) -> list[Path]:
    """Return the checkpoints of a folder, newest first; or the folder itself if it is a checkpoint."""
    try:
        if is_iteration_directory(weights):
            return [weights]
        return [*steps_in(weights).values(), weights / RELEASE]
    except OSError:
        return []  # loading the weights reports why they cannot be read


def own_folders(checkpoint: CheckpointConfig) -> list[Path]:
    """Return the checkpoints that a run can resume from and all nodes see, newest first; none for a fresh run."""
    if checkpoint.load is None or checkpoint.finetune:
        return []
    load = Path(checkpoint.load)
    try:
        if is_iteration_directory(load):
            return [load]
        found = [
            item for root in (load, *non_persistent_roots(checkpoint)) for item in steps_in(root).items()
        ]
    except OSError:
        return []  # the load reports why it cannot be read
    return [folder for _, folder in sorted(found, reverse=True)]


def section_of(run_config: Path, name: str) -> Mapping[str, Any]:
    """Return a section of saved settings; an empty one if it is missing or damaged."""
    try:
        settings = yaml.safe_load(run_config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    section = settings.get(name) if isinstance(settings, Mapping) else None
    return section if isinstance(section, Mapping) else {}
