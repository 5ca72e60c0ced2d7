"""What a run takes from the checkpoint that it starts from beside the weights: their tokenizer. No torch."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from mb_checkpoint.layout import is_iteration_directory, steps_in
from mb_config import Provenance
from mb_trainer.config import ConfigContainer

KIND, MODEL = "tokenizer.tokenizer_type", "tokenizer.tokenizer_model"
TAKEN = "HuggingFaceTokenizer"
KEPT = "tokenizer.json"
"""What a checkpoint keeps of a tokenizer that was trained with the run, or of one of this type."""

ORIGIN = "resolve: the tokenizer of checkpoint.pretrained_checkpoint"


def take_tokenizer(config: ConfigContainer, *, run_config: Path, provenance: Provenance) -> None:
    """Let text be read by the tokenizer of the weights that a run starts from, so that numbers mean what they meant.

    A tokenizer that the user named stays, and so does any where the checkpoint has kept none. A run that goes on keeps
    the one that it began with.

    Args:
        config: its tokenizer is set.
        run_config: the settings of the run in its folder, which need not be there.
        provenance: is told.
    """
    weights, section = config.checkpoint.pretrained_checkpoint, config.tokenizer
    chosen = any(provenance.by_user(path) for path in (KIND, MODEL))
    if weights is None or chosen or section.tokenizer_type not in (None, TAKEN):
        return
    kept = kept_files(Path(weights))
    if not kept:
        return
    begun_with = tokenizer_model(run_config)
    section.tokenizer_type = TAKEN
    section.tokenizer_model = begun_with if begun_with in kept else kept[0]
    provenance.note(KIND, ORIGIN)
    provenance.note(MODEL, ORIGIN)


def kept_files(weights: Path) -> list[str]:
    """Return the tokenizers that the checkpoints of a folder have kept, newest first; or that of one checkpoint."""
    try:
        folders = (
            [weights]
            if is_iteration_directory(weights)
            else [*steps_in(weights).values(), weights / "release"]
        )
        return [(folder / KEPT).as_posix() for folder in folders if (folder / KEPT).is_file()]
    except OSError:
        return []  # who loads the weights says why they cannot be read


def tokenizer_model(run_config: Path) -> str | None:
    """Return the file of the tokenizer that the settings of a run name; None where there are none, or damaged ones."""
    try:
        settings = yaml.safe_load(run_config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    section = settings.get("tokenizer") if isinstance(settings, Mapping) else None
    return section.get("tokenizer_model") if isinstance(section, Mapping) else None
