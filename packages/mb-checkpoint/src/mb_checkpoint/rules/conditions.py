"""Conditions of the rules: each returns None or a description of the problem with its values. Standard library only."""

import sys
from importlib.util import find_spec
from pathlib import Path

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


def pretrained_exists(pretrained_checkpoint):
    """Check that the folder of the initial weights exists and is accessible."""
    try:
        if (
            pretrained_checkpoint is None
            or is_url(pretrained_checkpoint)
            or Path(pretrained_checkpoint).is_dir()
        ):
            return None
        return why_no_source(pretrained_checkpoint, resume=False)
    except OSError as error:
        return f"{pretrained_checkpoint} cannot be read ({type(error).__name__}: {error.strerror})"


def best_metric_is_measured(best_metric, save_interval, validation__eval_interval):
    """Check that each checkpoint is saved after an evaluation, so that it has a value of the metric."""
    if save_interval == "auto":  # resolved to a multiple of the evaluations
        save_interval = validation__eval_interval
    if best_metric is None or (
        save_interval and validation__eval_interval and save_interval % validation__eval_interval == 0
    ):
        return None
    return (
        f"requires saves after evaluations (save_interval={save_interval}, "
        f"eval_interval={validation__eval_interval})"
    )


def load_has_checkpoint(
    load,
    save,
    finetune,
    non_persistent_ckpt_type,
    non_persistent_global_ckpt_dir,
    non_persistent_local_ckpt_dir,
    custom_manager_class,
    *,
    same_machine,
):
    """Return why a run cannot resume from `load`; only a `load` equal to `save` may be empty.

    Non-persistent checkpoints of the same run, in their own folders, also count. Custom managers are not checked,
    because the files that they read are not known.
    """
    if load is None or custom_manager_class is not None or is_url(load) or is_same_folder(load, save):
        return None
    reason = why_no_source(load, resume=not finetune)
    if reason is None or finetune:
        return reason
    roots = [root for root in (non_persistent_global_ckpt_dir, save and f"{save}/{NON_PERSISTENT}") if root]
    if any(why_not_a_checkpoint(Path(root)) is None for root in roots):
        return None
    of_this_node = (
        non_persistent_ckpt_type == "local"
        and non_persistent_local_ckpt_dir
        and next(Path(non_persistent_local_ckpt_dir).rglob("iter_*_local.pt"), None)
    )
    return None if of_this_node else reason


def pretrained_has_checkpoint(pretrained_checkpoint, custom_manager_class, *, same_machine):
    """Return why no weights can be read from `pretrained_checkpoint`; rule V064 covers a missing folder."""
    if (
        pretrained_checkpoint is None
        or custom_manager_class is not None
        or is_url(pretrained_checkpoint)
        or not exists(pretrained_checkpoint, as_folder=True)
    ):
        return None
    return why_no_source(pretrained_checkpoint, resume=False)


def source_is_folder(hf_source_path, *, same_machine):
    """Check that the folder whose files are copied to an export exists; rules on paths reject URLs."""
    return (
        None
        if hf_source_path is None or is_url(hf_source_path) or exists(hf_source_path, as_folder=True)
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


def storage_can_be_opened(storage, storage_options, save, *, same_machine):
    """Return why `storage` cannot be used, as far as this is known without accessing it."""
    if storage is None:
        return None
    if not is_url(storage):
        problem = path_problem(storage)
        if problem is None and save is not None and Path(save).resolve() in _and_parents(storage):
            problem = f"{storage} is the folder of checkpoint.save={save}, or in it"
        if problem is not None:
            return problem
    try:
        open_storage(storage, storage_options)
    except StorageError as error:
        return str(error)
    return None


def _and_parents(address: str) -> list[Path]:
    folder = Path(address).resolve()
    return [folder, *folder.parents]


def options_are_not_secret(storage_options):
    """Return the names of storage options that hold secrets."""
    named = [name for name in storage_options if name in ("key", "username") or is_secret_name(name)]
    return f"{', '.join(named)} is a credential" if named else None


def finetune_has_weights(finetune, pretrained_checkpoint, load):
    """Check that fine-tuning has initial weights."""
    if not finetune or pretrained_checkpoint is not None:
        return None
    if load is None:
        return "finetune=true, but neither pretrained_checkpoint nor load is set"
    reason = why_not_a_checkpoint(Path(load))
    return (
        f"finetune=true, but pretrained_checkpoint is not set, and load={load} {reason}" if reason else None
    )


def async_save_has_folder(async_save, save, use_persistent_ckpt_worker):
    """Check that a background save has a folder and a persistent worker."""
    if async_save and save is None:
        return "async_save=true, but save is not set"
    if async_save and not use_persistent_ckpt_worker:
        return "async_save=true with use_persistent_ckpt_worker=false"
    return None


def hugging_face_has_weights(also_save_hf_checkpoint, ckpt_format, non_persistent_ckpt_type):
    """Check that the saved weights can be exported in Hugging Face format."""
    if also_save_hf_checkpoint and ckpt_format == "fsdp_dtensor":
        return "also_save_hf_checkpoint=true with ckpt_format=fsdp_dtensor"
    if also_save_hf_checkpoint and non_persistent_ckpt_type == "local":
        return "also_save_hf_checkpoint=true with non_persistent_ckpt_type=local"
    return None


def most_recent_k_is_valid(most_recent_k):
    """Check the number of checkpoints to keep."""
    good = most_recent_k is not None and (most_recent_k == -1 or most_recent_k >= 1)
    return None if good else f"most_recent_k={most_recent_k}"


def strictness_returns_no_lists(dist_ckpt_strictness):
    """Check that the load does not return lists, which have no consumer."""
    return (
        f"dist_ckpt_strictness={dist_ckpt_strictness}" if dist_ckpt_strictness.startswith("return_") else None
    )


def intervals_are_positive(*intervals: int | None) -> str | None:
    """Check that the intervals between checkpoints are positive."""
    names = ("save_interval", "non_persistent_save_interval")
    wrong = [
        f"{name}={value}"
        for name, value in zip(names, intervals, strict=True)
        if isinstance(value, int) and value < 1
    ]
    return ", ".join(wrong) or None


def local_library_is_installed(non_persistent_ckpt_type, *, nvidia_resiliency_ext_installed):
    """Check that the library for local checkpoints is installed; None if that is not known."""
    missing = non_persistent_ckpt_type == "local" and nvidia_resiliency_ext_installed is False
    return "non_persistent_ckpt_type=local, but nvidia-resiliency-ext is not installed" if missing else None


def manager_package_exists(custom_manager_class):
    """Check that a dotted name can be that of a class. Searches for its package without importing it."""
    if custom_manager_class is None:
        return None
    package, *submodules = custom_manager_class.split(".")
    if not submodules or not all(part.isidentifier() for part in (package, *submodules)):
        return f"{custom_manager_class!r} is not a module and class"
    if package in sys.modules or find_spec(package) is not None:
        return None
    return f"{custom_manager_class!r}: there is no package {package} here"
