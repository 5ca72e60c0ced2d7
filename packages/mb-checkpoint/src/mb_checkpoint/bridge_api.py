"""Megatron-Bridge's functions on the files of checkpoints, with its names, arguments and results. Imports torch.

They return paths as text, and read one file; `select_checkpoint` and `inspect` of this package check what they read.
"""

from pathlib import Path

from mb_checkpoint.collectives import read_for_all_ranks
from mb_checkpoint.errors import DamagedCheckpointError
from mb_checkpoint.formats.layout import (
    FORMAT_MARKER,
    RELEASE,
    RUN_CONFIG,
    STATE_TRACKER,
    STEP_TRACKER,
    TRAIN_STATE,
    has_checkpoint,
    is_hugging_face_directory,
    is_iteration_directory,
    iteration_directory,
)
from mb_checkpoint.formats.trackers import read_tracker

TRACKER_PREFIX = STATE_TRACKER.removesuffix(f"_{TRAIN_STATE}")
"""Begin of the name of the tracker that holds the counters of the newest checkpoint."""


def get_checkpoint_name(checkpoints_path: str, iteration: int, release: bool = False) -> str:
    """Return the folder of a step, or with `release` that of weights without a step."""
    root = Path(checkpoints_path)
    return str(root / RELEASE if release else iteration_directory(root, iteration))


def get_checkpoint_train_state_filename(checkpoints_path: str, prefix: str | None = None) -> str:
    """Return the file of counters in a checkpoint, or with the prefix "latest" the tracker next to checkpoints."""
    return str(Path(checkpoints_path, TRAIN_STATE if prefix is None else f"{prefix}_{TRAIN_STATE}"))


def get_checkpoint_run_config_filename(checkpoints_path: str) -> str:
    """Return the file of the configuration in a checkpoint."""
    return str(Path(checkpoints_path, RUN_CONFIG))


def get_checkpoint_tracker_filename(checkpoints_path: str) -> str:
    """Return the tracker next to checkpoints that holds the newest step as text."""
    return str(Path(checkpoints_path, STEP_TRACKER))


def is_checkpoint_iteration_directory(path: str | None) -> bool:
    """Return whether a folder is itself a checkpoint, complete or not."""
    return path is not None and is_iteration_directory(Path(path))


def is_hf_checkpoint_dir(path: str | None) -> bool:
    """Return whether a folder holds a model in Hugging Face format: a config.json and weights."""
    return path is not None and is_hugging_face_directory(Path(path))


def checkpoint_exists(checkpoints_path: str | None) -> bool:
    """Return whether a folder is a checkpoint, or has a tracker of checkpoints."""
    return checkpoints_path is not None and has_checkpoint(Path(checkpoints_path))


def find_checkpoint_rank_0(checkpoints_path: str, iteration: int, release: bool = False) -> str | None:
    """Return the folder of a step if it has a checkpoint of Megatron Core, else None."""
    folder = get_checkpoint_name(checkpoints_path, iteration, release=release)
    return folder if Path(folder, FORMAT_MARKER).is_file() else None


def read_metadata(tracker_filename: str) -> tuple[int, bool]:
    """Return the step that a tracker holds, and whether it names weights without a step instead. Collective.

    Raises:
        CheckpointReadError: The tracker does not exist, or holds neither.
    """
    path = Path(tracker_filename)

    def read() -> tuple[int, bool]:
        step = read_tracker(path)
        if step == 0:
            raise DamagedCheckpointError("holds step 0, before which nothing is saved")
        return step or 0, step is None

    return read_for_all_ranks(path, read)
