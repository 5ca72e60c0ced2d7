"""Checkpoint folders that a run can start or resume from, without reading their content. No torch."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.formats.foreign import is_same_folder, written_by_bridge
from mb_checkpoint.formats.layout import (
    RELEASE,
    RUN_CONFIG,
    is_hugging_face_directory,
    is_iteration_directory,
    non_persistent_roots,
    step_of,
    steps_in,
)


def weight_directories(weights: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first; the folder itself if it holds one, in any format.

    A folder that cannot be read has none; loading the weights reports the reason.
    """
    try:
        if is_iteration_directory(weights) or is_hugging_face_directory(weights):
            return [weights]
        return [*steps_in(weights).values(), weights / RELEASE]
    except OSError:
        return []


def resumable_directories(config: CheckpointConfig, *, persistent: bool = False) -> list[Path]:
    """Return the checkpoints that a run can resume from and all nodes see, newest first; none for a fresh run.

    A folder that cannot be read has none; the load reports the reason. `persistent`: without non-persistent ones.
    """
    if config.load is None or config.finetune:
        return []
    load = Path(config.load)
    try:
        if is_iteration_directory(load):
            return [load]
        roots = (load, *([] if persistent else non_persistent_roots(config)))
        step_folders = [item for root in roots for item in steps_in(root).items()]
    except OSError:
        return []
    return [folder for _, folder in sorted(step_folders, reverse=True)]


def resumed_run_configs(config: CheckpointConfig) -> Iterator[Path]:
    """Yield the run_config.yaml of each checkpoint that a run can resume from, newest first.

    Those that cannot be read are left out, and those of Megatron-Bridge, which have other fields.
    """
    for folder in resumable_directories(config):
        file = folder / RUN_CONFIG
        with suppress(OSError):  # the load reports the reason
            if config.ckpt_step in (None, step_of(folder)) and file.is_file() and not written_by_bridge(file):
                yield file


def loads_from(config: CheckpointConfig, folder: Path | str | None) -> bool:
    """Return whether a run loads its checkpoints, or a named one, from a folder of checkpoints."""
    if config.load is None or folder is None:
        return False
    load = Path(config.load)
    root = load.parent if step_of(load) is not None else load
    return is_same_folder(str(root), str(folder))


def is_checkpoint_file(file: Path, *, weights: object) -> bool:
    """Return by its name whether a file is or was part of a checkpoint.

    `weights` is the configured folder of weights, which may have any name.
    """
    folder = file.parent
    return step_of(folder) is not None or folder.name == RELEASE or folder.as_posix() == weights
