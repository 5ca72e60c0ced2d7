"""Checkpoint folders that a run can start or resume from, without reading their content. No torch."""

from pathlib import Path
from typing import Protocol

from mb_checkpoint.formats.layout import (
    NonPersistentDirs,
    is_hugging_face_directory,
    is_iteration_directory,
    non_persistent_roots,
    step_of,
    steps_in,
)

RELEASE = "release"
"""Name of a folder of weights without a step, next to the step folders."""


class ResumeSettings(NonPersistentDirs, Protocol):
    """Fields of the checkpoint section that determine what a run resumes from."""

    @property
    def finetune(self) -> bool:
        """Whether the checkpoint in `load` is taken for its weights only."""


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


def resumable_directories(config: ResumeSettings) -> list[Path]:
    """Return the checkpoints that a run can resume from and all nodes see, newest first; none for a fresh run.

    A folder that cannot be read has none; the load reports the reason.
    """
    if config.load is None or config.finetune:
        return []
    load = Path(config.load)
    try:
        if is_iteration_directory(load):
            return [load]
        roots = (load, *non_persistent_roots(config))
        step_folders = [item for root in roots for item in steps_in(root).items()]
    except OSError:
        return []
    return [folder for _, folder in sorted(step_folders, reverse=True)]


def is_checkpoint_file(file: Path, *, weights: object) -> bool:
    """Return by its name whether a file is or was part of a checkpoint.

    `weights` is the configured folder of weights, which may have any name.
    """
    folder = file.parent
    return step_of(folder) is not None or folder.name == RELEASE or folder.as_posix() == weights
