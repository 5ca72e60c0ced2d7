"""What a run takes from the checkpoint that it starts from beside the weights: their tokenizer. No torch."""

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
"""Files in which a checkpoint keeps a tokenizer, and the type that reads each: one trained with the run and that of
GPT-2's two files are kept as Hugging Face's are."""

ADDED = ("special_tokens", "vocab_extra_ids", "tokenizer_hf_no_include_special_tokens")
OF_TIKTOKEN = ("vocab_size", "tiktoken_pattern", "tiktoken_num_special_tokens")
"""Settings that make the numbers of tokens with the file, of every type and of one."""

ORIGIN = "resolve: the tokenizer of checkpoint.pretrained_checkpoint"


def take_tokenizer(config: ConfigContainer, *, run_config: Path, provenance: Provenance) -> None:
    """Let text be read by the tokenizer of the weights that a run starts from, so that numbers mean what they meant.

    A tokenizer that the user named stays, and so does any where the checkpoint has kept none. A run that goes on keeps
    the one that it began with, also where that checkpoint is gone or named no more: `kept_by_run` says where its files
    are then.

    Args:
        config: its tokenizer is set, but for settings of the user.
        run_config: the settings of the run in its folder, which need not be there.
        provenance: is told.
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
    """Return the settings of the tokenizer that a run takes: what it began with, else the newest; empty for none."""
    folders = [] if weights is None else folders_of(Path(weights))
    offering = [folder for folder in folders if kept_file(folder) is not None]
    if begun is not None and Path(begun[MODEL]).parent in offering:
        return offered(Path(begun[MODEL]).parent)
    if begun is not None and own_folders(checkpoint):
        return begun
    return offered(offering[0]) if offering else {}


def kept_by_run(config: ConfigContainer) -> Path | None:
    """Return the newest checkpoint of a run that has kept its tokenizer, where files that are named are gone.

    None where they are there, or where no checkpoint has kept the tokenizer of these names.
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
    """Say that the tokenizer is read from a checkpoint of the run, where it is."""
    kept, section = kept_by_run(config), config.tokenizer
    if kept is None:
        return None
    return f"tokenizer: {section.tokenizer_model or section.vocab_file} is gone; read as {kept} has kept it"


def begun_with(run_config: Path) -> dict[str, Any] | None:
    """Return the tokenizer that a run took from weights when it began; None for one that took none, or is not there."""
    section = section_of(run_config, "tokenizer")
    model = section.get(MODEL)
    if not isinstance(model, str) or not is_in_checkpoint(Path(model), section_of(run_config, "checkpoint")):
        return None
    return with_additions(section, kind=section.get(KIND) or HUGGING_FACE, model=model)


def is_in_checkpoint(file: Path, saved: Mapping[str, Any]) -> bool:
    """Say by its name whether a file is, or was, one of a checkpoint's; one that is weights may have any name."""
    folder, weights = file.parent, saved.get("pretrained_checkpoint")
    return step_of(folder) is not None or folder.name == RELEASE or folder.as_posix() == weights


def offered(folder: Path) -> dict[str, Any]:
    """Return the settings of the tokenizer that a checkpoint has kept."""
    file = kept_file(folder)
    if file is None:
        return {}
    return with_additions(
        section_of(folder / RUN_CONFIG, "tokenizer"), kind=KEPT[file.name], model=file.as_posix()
    )


def with_additions(section: Mapping[str, Any], *, kind: str, model: str) -> dict[str, Any]:
    """Return the type and the file of a tokenizer with what a saved section asks for beside them."""
    names = (*ADDED, *(OF_TIKTOKEN if kind == KEPT["tiktoken.json"] else ()))
    return {KIND: kind, MODEL: model} | {name: section[name] for name in names if section.get(name)}


def kept_file(folder: Path) -> Path | None:
    """Return the file of the tokenizer that a checkpoint has kept, if it has."""
    return next((folder / name for name in KEPT if (folder / name).is_file()), None)


def folders_of(weights: Path) -> list[Path]:
    """Return the checkpoints of a folder, newest first; or the one that it is."""
    try:
        if is_iteration_directory(weights):
            return [weights]
        return [*steps_in(weights).values(), weights / RELEASE]
    except OSError:
        return []  # who loads the weights says why they cannot be read


def own_folders(checkpoint: CheckpointConfig) -> list[Path]:
    """Return the checkpoints that a run can go on from and all nodes see, newest first; none for one that begins."""
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
        return []  # who loads it says why it cannot be read
    return [folder for _, folder in sorted(found, reverse=True)]


def section_of(run_config: Path, name: str) -> Mapping[str, Any]:
    """Return a section of saved settings; an empty one where there is none, or where they are damaged."""
    try:
        settings = yaml.safe_load(run_config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    section = settings.get(name) if isinstance(settings, Mapping) else None
    return section if isinstance(section, Mapping) else {}
