"""Names of files and folders, and the files that a folder must hold to be a checkpoint."""

import re
import secrets
from pathlib import Path
from typing import Protocol

TRAIN_STATE = "train_state.pt"
RUN_CONFIG = "run_config.yaml"
FORMAT_MARKER = "metadata.json"
TENSOR_INDEX = ".metadata"
MANIFEST = "manifest.json"
NON_PERSISTENT = "non_persistent"
RELEASE = "release"
"""Folder of weights without a step, next to the step folders; also the content of a tracker that names it."""
DATALOADER = "energon"
STATE_TRACKER = "latest_train_state.pt"
STEP_TRACKER = "latest_checkpointed_iteration.txt"
BEST_LINK = "best"
"""Link to the best checkpoint by a validation metric, next to the step folders."""
STORAGE_RUN = ".storage_run"
"""File with the identity of the run whose storage has copies of the checkpoints, next to the step folders."""

MARKER_FILES = (RUN_CONFIG, TRAIN_STATE, FORMAT_MARKER, TENSOR_INDEX)
"""Files any of which makes a folder a checkpoint, complete or not."""
WEIGHTS = (TENSOR_INDEX,)
"""Files that a load of weights requires."""
RESUMABLE = (TENSOR_INDEX, TRAIN_STATE)
"""Files that a resume requires."""
RUN_CHECKPOINTS = "checkpoints"
RUN_EVENTS = "events.jsonl"
"""Folder of the checkpoints and file of the events of a run folder."""
LEGACY = "torch"
"""Name of Megatron-LM's legacy layout, as `format_of` returns it."""
LEGACY_FILE = "model_optim_rng.pt"
LEGACY_OPTIMIZER = "distrib_optim.pt"
"""Files of a rank in Megatron-LM's legacy layout `torch`; the second is that of the distributed optimizer."""
_LEGACY_RANK = re.compile(r"mp_rank_\d{2}(_\d{3})*")
COMMON_STATE = "common_state/shard_0_1"
COMMON_FILE = "common.pt"
"""Entry of Megatron Core with the state that is identical on all ranks; the file of it up to version 0.15."""
_REPLACED = ".replaced_"
_STAGING = ".saving_"
_REMOVING = ".removing_"
_REPLACED_FILES = (STATE_TRACKER, STEP_TRACKER, BEST_LINK, STORAGE_RUN)
_STEP_FOLDER = re.compile(r"(?:\.replaced_)?iter_(\d{7,})")


def iteration_directory(root: Path, step: int) -> Path:
    """Return the folder of a step: `<root>/iter_0000100`, with at least seven digits."""
    return root / f"iter_{step:07d}"


def resolved_best(path: Path) -> Path:
    """Return the checkpoint that the link `best` points to; any other path unchanged."""
    return path.with_name(path.readlink().name) if path.name == BEST_LINK and path.is_symlink() else path


def step_of(directory: Path) -> int | None:
    """Return the step in the name of a folder, including the hidden replaced form; None for other names."""
    match = _STEP_FOLDER.fullmatch(directory.name)
    return int(match[1]) if match else None


def has_local_checkpoint(root: Path) -> bool:
    """Return whether the disk of this node has a local checkpoint of nvidia-resiliency-ext, complete or not."""
    return next(root.rglob("iter_*_local.pt"), None) is not None


def staging_directory(root: Path, step: int, attempt: str) -> Path:
    """Return the folder in which a step is written until it is complete; hidden, so that `iter_*` does not match it.

    Each attempt has a separate folder, so that a writer that survives an earlier attempt cannot write to it.
    """
    return root / f"{_STAGING}{iteration_directory(root, step).name}.{attempt}"


def is_staging_directory(path: Path) -> bool:
    """Return whether a path is a staging folder."""
    return path.name.startswith(f"{_STAGING}iter_")


def staged_step(path: Path) -> int | None:
    """Return the step of a staging folder."""
    return step_of(path.with_name(path.name.removeprefix(_STAGING).partition(".")[0]))


def staging_directories(root: Path) -> list[Path]:
    """Return the staging folders below a root, by name: of saves in progress, and of processes that died."""
    staged = root.glob(f"{_STAGING}iter_*")
    return sorted(path for path in staged if path.is_dir() and staged_step(path) is not None)


def replaced_directory(root: Path, step: int) -> Path:
    """Return the temporary name of the older folder of a step while the new folder takes its name."""
    return root / f"{_REPLACED}{iteration_directory(root, step).name}"


def removing_directory(directory: Path) -> Path:
    """Return the hidden name of a checkpoint folder while it is deleted."""
    return directory.with_name(f"{_REMOVING}{directory.name}")


def temporary_name(path: Path) -> Path:
    """Return an unused name in the same folder, for the link that is to replace one atomically."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def leftovers(root: Path) -> list[Path]:
    """Return what processes that died have left next to the step folders, by name.

    Staging folders, partially deleted folders, replaced folders whose successor has its name, and files and links that
    were to replace others. Those of processes that work there are among them.
    """
    paths = staging_directories(root)
    for path in root.glob(f"{_REMOVING}*"):
        if step_of(path.with_name(path.name.removeprefix(_REMOVING))) is not None:
            paths.append(path)
    for path in root.glob(f"{_REPLACED}iter_*"):
        if path.with_name(path.name.removeprefix(_REPLACED)).exists():
            paths.append(path)
    for name in _REPLACED_FILES:
        paths += root.glob(f".{name}.{'[0-9a-f]' * 16}")
        paths += root.glob(f".{name}.{'[0-9a-f]' * 8}.part")
    return sorted(paths)


def legacy_ranks(directory: Path) -> list[Path]:
    """Return the folders of ranks in a checkpoint of Megatron-LM's legacy layout `torch`; empty for others."""
    rank_folders = [path for path in directory.glob("mp_rank_*") if _LEGACY_RANK.fullmatch(path.name)]
    return sorted(path for path in rank_folders if (path / LEGACY_FILE).is_file())


def is_iteration_directory(path: Path) -> bool:
    """Return whether the folder itself is a checkpoint: it holds any of the marker files, or files of legacy ranks.

    A run_config.yaml alone does not count if checkpoints are next to it, as in a folder that receives all output of a
    run.
    """
    if _has_marker(path):
        return True
    return (path / RUN_CONFIG).is_file() and not _has_tracker(path) and not steps_in(path)


def _has_marker(path: Path) -> bool:
    """Return whether a folder has files of a checkpoint; a run_config.yaml is also in folders without one."""
    has_file = any((path / mark).is_file() for mark in MARKER_FILES if mark != RUN_CONFIG)
    return has_file or bool(legacy_ranks(path))


def has_checkpoint(path: Path) -> bool:
    """Return whether a path is a checkpoint, or a folder with trackers."""
    return is_iteration_directory(path) or _has_tracker(path)


def _has_tracker(path: Path) -> bool:
    return any((path / name).is_file() for name in (STATE_TRACKER, STEP_TRACKER))


def checkpoints_in(folder: Path) -> Path:
    """Return the folder of checkpoints: `checkpoints` of a run folder, else the folder itself.

    A run folder is recognized by its `checkpoints`, or by its events.jsonl if it has no step folders.
    """
    try:
        is_run = (folder / RUN_CHECKPOINTS).is_dir() or (
            (folder / RUN_EVENTS).is_file() and not steps_in(folder)
        )
    except OSError:
        return folder  # reading it reports the reason
    return folder / RUN_CHECKPOINTS if is_run else folder


def why_not_a_checkpoint(path: Path) -> str | None:
    """Return why a load finds no weights below a path; None if there are some, complete or not.

    Searches for a checkpoint, for trackers, and for step folders without trackers, persistent or non-persistent. A
    run_config.yaml alone has no weights: `is_iteration_directory` accepts it, and a load reports the missing files.
    """
    try:
        if _has_marker(path) or _has_tracker(path) or steps_in(path) or steps_in(path / NON_PERSISTENT):
            return None
        has_config = (path / RUN_CONFIG).is_file()
    except OSError as error:
        return f"cannot be read ({type(error).__name__}: {error.strerror})"
    return f"has a {RUN_CONFIG} and no checkpoint" if has_config else "has no checkpoint"


HUGGING_FACE_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin*")
"""Patterns of the files of weights in Hugging Face format."""


def is_hugging_face_directory(path: Path) -> bool:
    """Return whether the folder holds a model in Hugging Face format: a config.json and weights."""
    if not (path / "config.json").is_file():
        return False
    return any(next(path.glob(pattern), None) is not None for pattern in HUGGING_FACE_WEIGHTS)


def is_convertible(folder: Path) -> bool:
    """Return whether a folder has weights in Hugging Face format that can be converted: safetensors files."""
    return is_hugging_face_directory(folder) and any(folder.glob("*.safetensors"))


class NonPersistentDirs(Protocol):
    """Fields of the checkpoint section that determine the location of non-persistent checkpoints."""

    @property
    def save(self) -> str | None:
        """Folder of the persistent checkpoints."""

    @property
    def load(self) -> str | None:
        """Folder to resume from."""

    @property
    def non_persistent_ckpt_type(self) -> str | None:
        """Type of non-persistent checkpoints."""

    @property
    def non_persistent_global_ckpt_dir(self) -> str | None:
        """Folder of the global non-persistent checkpoints."""


def non_persistent_roots(config: NonPersistentDirs) -> list[Path]:
    """Return the folders of global non-persistent checkpoints: the configured one, else below `save` and `load`."""
    if config.non_persistent_global_ckpt_dir is not None:
        return [Path(config.non_persistent_global_ckpt_dir)]
    parents = dict.fromkeys(parent for parent in (config.save, config.load) if parent is not None)
    return [Path(parent) / NON_PERSISTENT for parent in parents]


def is_non_persistent(config: NonPersistentDirs, checkpoint: Path) -> bool:
    """Return whether a checkpoint is a global non-persistent one, which newer ones replace."""
    return checkpoint.parent in non_persistent_roots(config)


def shared_save_roots(config: NonPersistentDirs) -> list[Path]:
    """Return the folders that a run saves to and all nodes see, as absolute paths; none without `save`."""
    if config.save is None:
        return []
    roots = (config.save, config.non_persistent_global_ckpt_dir)
    return list(dict.fromkeys(Path(root).absolute() for root in roots if root is not None))


def steps_in(root: Path) -> dict[int, Path]:
    """Return the step folders of a root, newest first.

    A step that exists only under its replaced name (the process died between two renames) is returned under that name,
    so that every committed checkpoint remains reachable.
    """
    if not root.is_dir():
        return {}
    folders: dict[int, Path] = {}
    for path in root.iterdir():
        plain = path.with_name(path.name.removeprefix(_REPLACED))
        step = step_of(path)
        if step is not None and path.is_dir() and (plain == path or not plain.exists()):
            folders[step] = path
    return dict(sorted(folders.items(), reverse=True))


def format_of(directory: Path) -> str:
    """Return the layout of a checkpoint: Megatron Core writes a marker file, and fsdp_dtensor has none."""
    if legacy_ranks(directory):
        return LEGACY
    return "torch_dist" if (directory / FORMAT_MARKER).is_file() else "fsdp_dtensor"


def has_counters_in_arguments(directory: Path) -> bool:
    """Return whether a checkpoint may hold its counters among Megatron-LM's arguments instead of in train_state.pt.

    That is so in Megatron-LM's layouts torch_dist and torch. Checkpoints of this package and of Megatron-Bridge have
    both files.
    """
    if any((directory / name).is_file() for name in (TRAIN_STATE, MANIFEST, RUN_CONFIG)):
        return False
    marked = all((directory / name).is_file() for name in (FORMAT_MARKER, TENSOR_INDEX))
    return marked or bool(legacy_ranks(directory))


def missing_files(directory: Path, wanted: tuple[str, ...] = RESUMABLE) -> list[str]:
    """Return a line for each requested file that a checkpoint folder lacks or that is unreadable.

    Checkpoints of Megatron Core must also have its marker file; those of Megatron-LM need no train_state.pt. In the
    legacy layout, the load finds out whether a rank's file is missing.
    """
    try:
        if legacy_ranks(directory):
            return []
        needed = (FORMAT_MARKER, *wanted) if (directory / COMMON_FILE).is_file() else wanted
        if has_counters_in_arguments(directory):
            needed = tuple(name for name in needed if name != TRAIN_STATE)
        return [line for name in needed if (line := _read_problem(directory / name)) is not None]
    except OSError as error:  # without the right to enter the folder, the existence of its files is unknown
        return [f"the folder cannot be read ({error.strerror})"]


def _read_problem(file: Path) -> str | None:
    if not file.is_file():
        return f"lacks {file.name}"
    try:
        with file.open("rb"):
            return None
    except OSError as error:
        return f"{file.name} cannot be read ({error.strerror})"
