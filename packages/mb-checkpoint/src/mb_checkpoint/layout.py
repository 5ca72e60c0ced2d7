"""Names of files and folders, and what a folder must hold to count as a checkpoint."""

import re
from pathlib import Path
from typing import Protocol

TRAIN_STATE = "train_state.pt"
RUN_CONFIG = "run_config.yaml"
FORMAT_MARKER = "metadata.json"
TENSOR_INDEX = ".metadata"
MANIFEST = "manifest.json"
NON_PERSISTENT = "non_persistent"
DATALOADER = "energon"
STATE_TRACKER = "latest_train_state.pt"
STEP_TRACKER = "latest_checkpointed_iteration.txt"

MARKER_FILES = (RUN_CONFIG, TRAIN_STATE, FORMAT_MARKER, TENSOR_INDEX)
WEIGHTS = (TENSOR_INDEX,)
RESUMABLE = (TENSOR_INDEX, TRAIN_STATE)
_COMMON = "common.pt"
_REPLACED = ".replaced_"
_STAGING = ".saving_"
_STEP_FOLDER = re.compile(r"(?:\.replaced_)?iter_(\d{7,})")


def iteration_directory(root: Path, step: int) -> Path:
    """Return the folder of a step: `<root>/iter_0000100`, at least seven digits."""
    return root / f"iter_{step:07d}"


def step_of(directory: Path) -> int | None:
    """Return the step that a folder's name says, the hidden replaced form included; None for other names."""
    match = _STEP_FOLDER.fullmatch(directory.name)
    return int(match[1]) if match else None


def staging_directory(root: Path, step: int, attempt: str) -> Path:
    """Return where a step is written until it is whole; hidden, and no tool's `iter_*` finds it.

    Each attempt has a folder of its own, so that a writer of an earlier one that is not dead yet cannot get into it.
    """
    return root / f"{_STAGING}{iteration_directory(root, step).name}.{attempt}"


def is_staging_directory(path: Path) -> bool:
    """Say whether a path is that of a step while it is written."""
    return path.name.startswith(f"{_STAGING}iter_")


def staged_step(path: Path) -> int | None:
    """Return the step that is, or was, written in a staging folder."""
    return step_of(path.with_name(path.name.removeprefix(_STAGING).partition(".")[0]))


def staging_directories(root: Path) -> list[Path]:
    """Return the folders below a root in which a step is written, or was when its process died, by name."""
    found = root.glob(f"{_STAGING}iter_*")
    return sorted(path for path in found if path.is_dir() and staged_step(path) is not None)


def replaced_directory(root: Path, step: int) -> Path:
    """Return where the older folder of the same step waits while the new one takes its name."""
    return root / f"{_REPLACED}{iteration_directory(root, step).name}"


def is_iteration_directory(path: Path) -> bool:
    """Say whether the folder itself is one checkpoint: it holds any of the four marks.

    A run_config.yaml alone is none where checkpoints lie beside it: a folder in which a run writes all it has.
    """
    if any((path / mark).is_file() for mark in MARKER_FILES if mark != RUN_CONFIG):
        return True
    return (path / RUN_CONFIG).is_file() and not _has_tracker(path) and not steps_in(path)


def has_checkpoint(path: Path) -> bool:
    """Say whether a path names a checkpoint, or a folder whose trackers name one."""
    return is_iteration_directory(path) or _has_tracker(path)


def _has_tracker(path: Path) -> bool:
    return any((path / name).is_file() for name in (STATE_TRACKER, STEP_TRACKER))


def why_not_a_checkpoint(path: Path) -> str | None:
    """Say what keeps a load from finding weights below a path; None where there are some, whole or not.

    Looks for one checkpoint, for trackers, and for step folders without any, beside them or among the temporary ones.
    A run_config.yaml alone has no weights: `is_iteration_directory` accepts it, and a load reports what is missing.
    """
    try:
        marked = any((path / mark).is_file() for mark in MARKER_FILES if mark != RUN_CONFIG)
        found = marked or _has_tracker(path) or any(steps_in(root) for root in (path, path / NON_PERSISTENT))
        config_alone = not found and (path / RUN_CONFIG).is_file()
    except OSError as error:
        return f"cannot be read ({type(error).__name__}: {error.strerror})"
    if config_alone:
        return f"has a {RUN_CONFIG} and no checkpoint"
    return None if found else "has no checkpoint"


HUGGING_FACE_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin*")


def is_hugging_face_directory(path: Path) -> bool:
    """Say whether the folder holds a model in Hugging Face form: a config.json and weights."""
    if not (path / "config.json").is_file():
        return False
    return any(next(path.glob(pattern), None) is not None for pattern in HUGGING_FACE_WEIGHTS)


class NonPersistentDirs(Protocol):
    """The fields of the checkpoint section that say where temporary checkpoints lie."""

    @property
    def save(self) -> str | None:
        """Folder of the lasting checkpoints."""

    @property
    def load(self) -> str | None:
        """Folder to resume from."""

    @property
    def non_persistent_ckpt_type(self) -> str | None:
        """Kind of temporary checkpoints."""

    @property
    def non_persistent_global_ckpt_dir(self) -> str | None:
        """Folder of the global ones."""


def non_persistent_roots(places: NonPersistentDirs) -> list[Path]:
    """Return where global temporary checkpoints may lie: the folder configured, else those beside lasting ones."""
    if places.non_persistent_global_ckpt_dir is not None:
        return [Path(places.non_persistent_global_ckpt_dir)]
    parents = dict.fromkeys(parent for parent in (places.save, places.load) if parent is not None)
    return [Path(parent) / NON_PERSISTENT for parent in parents]


def steps_in(root: Path) -> dict[int, Path]:
    """Return the step folders of a root, newest first.

    A step whose folder is only there under its replaced name (the process died between two renames) counts
    under that name, so that nothing committed is out of reach.
    """
    if not root.is_dir():
        return {}
    found: dict[int, Path] = {}
    for path in root.iterdir():
        plain = path.with_name(path.name.removeprefix(_REPLACED))
        step = step_of(path)
        if step is not None and path.is_dir() and (plain == path or not plain.exists()):
            found[step] = path
    return dict(sorted(found.items(), reverse=True))


def format_of(directory: Path) -> str:
    """Return the layout of a checkpoint's tensors: Megatron Core marks its own, and fsdp_dtensor has no mark."""
    return "torch_dist" if (directory / FORMAT_MARKER).is_file() else "fsdp_dtensor"


def missing_files(directory: Path, wanted: tuple[str, ...] = RESUMABLE) -> list[str]:
    """Say which wanted files a checkpoint folder lacks, or has and does not let read, a line for each.

    What Megatron Core wrote must have its mark, too.
    """
    try:
        needed = (FORMAT_MARKER, *wanted) if (directory / _COMMON).is_file() else wanted
        return [line for name in needed if (line := _trouble_with(directory / name)) is not None]
    except OSError as error:  # a folder that may not be entered hides whether a file is there
        return [f"the folder cannot be read ({error.strerror})"]


def _trouble_with(file: Path) -> str | None:
    if not file.is_file():
        return f"lacks {file.name}"
    try:
        with file.open("rb"):
            return None
    except OSError as error:
        return f"{file.name} cannot be read ({error.strerror})"
