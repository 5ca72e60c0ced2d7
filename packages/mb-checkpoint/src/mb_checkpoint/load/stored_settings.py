"""Settings of the checkpoint that a run loads, for `checkpoint.use_checkpoint_args`. Without Megatron."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.errors import CheckpointNotFoundError
from mb_checkpoint.formats.layout import RUN_CONFIG
from mb_checkpoint.formats.stored_arguments import read_arguments
from mb_checkpoint.load.sources import find_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSettings:
    """Settings in a checkpoint: a file of this package or of Megatron-Bridge, or arguments of Megatron-LM."""

    path: Path
    """Folder of the checkpoint."""
    run_config: Path | None = None
    """Its run_config.yaml; None if it has none."""
    arguments: Mapping[str, Any] | None = None
    """Its arguments of Megatron-LM, read if there is no run_config.yaml."""


def find_stored_settings(section: CheckpointConfig) -> StoredSettings:
    """Return the settings of the checkpoint that a load would select. Not collective.

    Raises:
        CheckpointNotFoundError: There is no checkpoint, or it has no settings. Further errors as `find_checkpoint`.
    """
    _, chosen = find_checkpoint(section)
    if chosen is None:
        raise CheckpointNotFoundError(
            "checkpoint.use_checkpoint_args: there is no checkpoint to take settings from. Name one with "
            "checkpoint.load or checkpoint.pretrained_checkpoint, or set it to false."
        )
    if (chosen.path / RUN_CONFIG).is_file():
        return StoredSettings(path=chosen.path, run_config=chosen.path / RUN_CONFIG)
    arguments = read_arguments(chosen.path)
    if arguments is None:
        raise CheckpointNotFoundError(
            f"checkpoint.use_checkpoint_args: {chosen.path} holds no settings: neither {RUN_CONFIG} nor the arguments "
            "of Megatron-LM. Set the model section, and checkpoint.use_checkpoint_args=false."
        )
    return StoredSettings(path=chosen.path, arguments=arguments)
