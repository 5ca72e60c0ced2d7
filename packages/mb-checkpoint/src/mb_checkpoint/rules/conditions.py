"""Conditions of the rules: each returns None or a description of the problem with its values. Standard library only."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from mb_checkpoint.errors import StorageError
from mb_checkpoint.formats.foreign import is_same_folder, why_no_source
from mb_checkpoint.formats.layout import (
    NON_PERSISTENT,
    is_iteration_directory,
    steps_in,
    why_not_a_checkpoint,
)
from mb_checkpoint.storage.storage import open_storage
from mb_schema.paths import exists, is_url, path_problem
from mb_schema.secrets import is_secret_name

DISTRIBUTED_FORMATS = ("torch_dist", "fsdp_dtensor")


def pretrained_exists(path: str | None) -> str | None:
    """Check that the folder of the initial weights exists and is accessible."""
    try:
        if path is None or is_url(path) or Path(path).is_dir():
            return None
        return why_no_source(path, resume=False)
    except OSError as error:
        return f"{path} cannot be read ({type(error).__name__}: {error.strerror})"


def best_metric_is_measured(
    metric: str | None, saves: int | Literal["auto"] | None, evaluations: int | None
) -> str | None:
    """Check that each checkpoint is saved after an evaluation, so that it has a value of the metric."""
    if saves == "auto":  # resolved to a multiple of the evaluations
        saves = evaluations
    if metric is None or (saves and evaluations and saves % evaluations == 0):
        return None
    return f"requires saves after evaluations (save_interval={saves}, eval_interval={evaluations})"


def load_has_checkpoint(
    load: str | None,
    save: str | None,
    finetune: bool,
    kind: str | None,
    shared: str | None,
    local: str | None,
    manager: str | None,
    _: object,
) -> str | None:
    """Return why a run cannot resume from `load`; only a `load` equal to `save` may be empty.

    Non-persistent checkpoints of the same run, in their own folders, also count. Custom managers are not checked,
    because the files that they read are not known.
    """
    if load is None or manager is not None or is_url(load) or is_same_folder(load, save):
        return None
    reason = why_no_source(load, resume=not finetune)
    if reason is None or finetune:
        return reason
    roots = [root for root in (shared, save and f"{save}/{NON_PERSISTENT}") if root]
    if any(why_not_a_checkpoint(Path(root)) is None for root in roots):
        return None
    of_this_node = kind == "local" and local and next(Path(local).rglob("iter_*_local.pt"), None)
    return None if of_this_node else reason


def pretrained_has_checkpoint(pretrained: str | None, manager: str | None, _: object) -> str | None:
    """Return why no weights can be read from `pretrained_checkpoint`; rule V064 covers a missing folder."""
    if (
        pretrained is None
        or manager is not None
        or is_url(pretrained)
        or not exists(pretrained, as_folder=True)
    ):
        return None
    return why_no_source(pretrained, resume=False)


def source_is_folder(source: str | None, _: object) -> str | None:
    """Check that the folder whose files are copied to an export exists; rules on paths reject URLs."""
    return (
        None
        if source is None or is_url(source) or exists(source, as_folder=True)
        else "is not an existing folder"
    )


def step_exists(
    step: int | None, load: str | None, manager: str | None, _: object, storage: str | None = None
) -> str | None:
    """Return why a run cannot start at `ckpt_step`; a step that the storage may have is searched for by the load."""
    if step is None or load is None or manager is not None or storage is not None or is_url(load):
        return None
    try:
        root = Path(load)
        if is_iteration_directory(root):
            return None
        steps = steps_in(root)
    except OSError:
        return None  # the load reports the error
    listed = ", ".join(map(str, steps)) or "none"
    return None if step in steps else f"{load} has no step {step}; steps there: {listed}"


def storage_can_be_opened(
    address: str | None, options: Mapping[str, object], save: str | None, _: object
) -> str | None:
    """Return why `storage` cannot be used, as far as this is known without accessing it."""
    if address is None:
        return None
    if not is_url(address):
        problem = path_problem(address)
        if problem is None and save is not None and Path(save).resolve() in _and_parents(address):
            problem = f"{address} is the folder of checkpoint.save={save}, or in it"
        if problem is not None:
            return problem
    try:
        open_storage(address, options)
    except StorageError as error:
        return str(error)
    return None


def _and_parents(address: str) -> list[Path]:
    folder = Path(address).resolve()
    return [folder, *folder.parents]


def options_are_not_secret(options: Mapping[str, object]) -> str | None:
    """Return the names of storage options that hold secrets."""
    named = [name for name in options if name in ("key", "username") or is_secret_name(name)]
    return f"{', '.join(named)} is a credential" if named else None


def finetune_has_weights(finetune: bool, pretrained: str | None, load: str | None) -> str | None:
    """Check that fine-tuning has initial weights."""
    if not finetune or pretrained is not None:
        return None
    if load is None:
        return "finetune=true, but neither pretrained_checkpoint nor load is set"
    reason = why_not_a_checkpoint(Path(load))
    return (
        f"finetune=true, but pretrained_checkpoint is not set, and load={load} {reason}" if reason else None
    )


def async_save_has_folder(async_save: bool, save: str | None, persistent_worker: bool) -> str | None:
    """Check that a background save has a folder and a persistent worker."""
    if async_save and save is None:
        return "async_save=true, but save is not set"
    if async_save and not persistent_worker:
        return "async_save=true with use_persistent_ckpt_worker=false"
    return None


def hugging_face_has_weights(also_save: bool, ckpt_format: str, non_persistent: str | None) -> str | None:
    """Check that the saved weights can be exported in Hugging Face format."""
    if also_save and ckpt_format == "fsdp_dtensor":
        return "also_save_hf_checkpoint=true with ckpt_format=fsdp_dtensor"
    if also_save and non_persistent == "local":
        return "also_save_hf_checkpoint=true with non_persistent_ckpt_type=local"
    return None


def most_recent_k_is_valid(most_recent_k: int | None) -> str | None:
    """Check the number of checkpoints to keep."""
    good = most_recent_k is not None and (most_recent_k == -1 or most_recent_k >= 1)
    return None if good else f"most_recent_k={most_recent_k}"


def strictness_returns_no_lists(strictness: str) -> str | None:
    """Check that the load does not return lists, which have no consumer."""
    return f"dist_ckpt_strictness={strictness}" if strictness.startswith("return_") else None


def intervals_are_positive(*intervals: int | None) -> str | None:
    """Check that the intervals between checkpoints are positive."""
    names = ("save_interval", "non_persistent_save_interval")
    wrong = [
        f"{name}={value}"
        for name, value in zip(names, intervals, strict=True)
        if isinstance(value, int) and value < 1
    ]
    return ", ".join(wrong) or None


def local_library_is_installed(kind: str | None, installed: bool | None) -> str | None:
    """Check that the library for local checkpoints is installed; None if that is not known."""
    missing = kind == "local" and installed is False
    return "non_persistent_ckpt_type=local, but nvidia-resiliency-ext is not installed" if missing else None


def manager_package_exists(name: str | None) -> str | None:
    """Check that a dotted name can be that of a class. Searches for its package without importing it."""
    if name is None:
        return None
    package, *submodules = name.split(".")
    if not submodules or not all(part.isidentifier() for part in (package, *submodules)):
        return f"{name!r} is not a module and class"
    if package in sys.modules or find_spec(package) is not None:
        return None
    return f"{name!r}: there is no package {package} here"
