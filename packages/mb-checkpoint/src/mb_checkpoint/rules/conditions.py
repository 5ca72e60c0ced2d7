"""Rules of the `checkpoint` section whose condition is a function. Standard library only."""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from mb_checkpoint.errors import StorageError
from mb_checkpoint.formats.foreign import is_same_folder, why_no_source
from mb_checkpoint.formats.layout import (
    NON_PERSISTENT,
    has_local_checkpoint,
    is_iteration_directory,
    steps_in,
    why_not_a_checkpoint,
)
from mb_checkpoint.storage.storage import open_storage
from mb_schema.paths import exists, is_url, path_problem
from mb_schema.rule_kinds import assigned, facts_rule, section_rule
from mb_schema.rules import rules_in
from mb_schema.secrets import is_secret_name
from mb_schema.versions import release

checkpoint_rule = partial(section_rule, "checkpoint")

DISTRIBUTED_FORMATS = ("torch_dist", "fsdp_dtensor")

MIN_NVRX = (0, 3)
"""Minimum version of nvidia-resiliency-ext with the local checkpoints that this package writes."""

MIN_TORCH = (2, 8)
"""Minimum torch version: that of `torch` in pyproject.toml, the lowest with which loading is tested."""

INCOMPATIBLE_NVRX: dict[tuple[int, ...], str] = {
    (0, 4): "Megatron Core reads its __version__ while it is imported, which it lacks",
    (
        0,
        5,
    ): "Megatron Core demands 0.6 or newer of a version with this background writer while it is imported",
}
"""Releases with which Megatron Core 0.19 cannot be imported, and the reason."""


@checkpoint_rule(
    "V064",
    why="a run with initial weights must not start from random ones",
    fix="Set checkpoint.pretrained_checkpoint to an existing folder, or leave it out.",
    fails={"pretrained_checkpoint": "/no/such/checkpoint"},
    passes={"pretrained_checkpoint": None},
)
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


@checkpoint_rule(
    "CK60",
    why="a checkpoint is compared by the metric of an evaluation at its step",
    fix="Set checkpoint.save_interval to a multiple of validation.eval_interval.",
    fails={"best_metric": "lm loss", "save_interval": 100, "validation__eval_interval": 40},
    passes={"validation__eval_interval": 50},
)
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


@checkpoint_rule(
    "CK41",
    why="a run that names its source must not start from random weights; only a load equal to save may be empty",
    fix="Correct checkpoint.load, or leave it out to resume from the run's own folder.",
    fails={"load": "/no/such/run", "save": "runs/new/checkpoints", "same_machine": True},
    passes={"load": "runs/new/checkpoints"},
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
        and has_local_checkpoint(Path(non_persistent_local_ckpt_dir))
    )
    return None if of_this_node else reason


@checkpoint_rule(
    "CK42",
    why="a run with initial weights must not start from random ones",
    fix="Name a folder with trackers and iter_* folders, or one iter_* folder.",
    fails={"pretrained_checkpoint": "/"},
    passes={"pretrained_checkpoint": None},
)
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


@checkpoint_rule(
    "CK58",
    why="its small files, such as generation_config.json, are copied from it",
    fix="Name a folder in Hugging Face format, or leave out checkpoint.hf_source_path.",
    fails={"hf_source_path": "/dev/null"},
    passes={"hf_source_path": None},
)
def source_is_folder(hf_source_path, *, same_machine):
    """Check that the folder whose files are copied to an export exists; rules on paths reject URLs."""
    return (
        None
        if hf_source_path is None or is_url(hf_source_path) or exists(hf_source_path, as_folder=True)
        else "is not an existing folder"
    )


@checkpoint_rule(
    "CK43",
    why="there would be nothing to load",
    fix="Name one of these steps, or leave checkpoint.ckpt_step out for the newest.",
    fails={"ckpt_step": 100, "load": "/", "same_machine": True},
    passes={"storage": "s3://bucket/run"},
    implied_by="CK41",
)
def step_exists(ckpt_step, load, custom_manager_class, storage, *, same_machine):
    """Return why a run cannot start at `ckpt_step`; a step that the storage may have is searched for by the load."""
    if (
        ckpt_step is None
        or load is None
        or custom_manager_class is not None
        or storage is not None
        or is_url(load)
    ):
        return None
    try:
        root = Path(load)
        if is_iteration_directory(root):
            return None
        steps = steps_in(root)
    except OSError:
        return None  # the load reports the error
    listed = ", ".join(map(str, steps)) or "none"
    return None if ckpt_step in steps else f"{load} has no step {ckpt_step}; steps there: {listed}"


@checkpoint_rule(
    "CK53",
    why="the checkpoints of the run would not be copied there",
    fix="Correct checkpoint.storage and checkpoint.storage_options, or leave checkpoint.storage out.",
    fails={"storage": "nonsense://bucket/run"},
    passes={"storage": "/mnt/storage/run"},
)
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


@checkpoint_rule(
    "CK54",
    why="the section is stored with every checkpoint",
    fix="Put credentials into the environment or the configuration file of the provider, such as AWS_PROFILE.",
    fails={"storage_options": {"secret": "x"}},
    passes={"storage_options": {"endpoint_url": "http://127.0.0.1:9000"}},
)
def options_are_not_secret(storage_options):
    """Return the names of storage options that hold secrets."""
    named = [name for name in storage_options if name in ("key", "username") or is_secret_name(name)]
    return f"{', '.join(named)} is a credential" if named else None


@checkpoint_rule(
    "V244",
    why="fine-tuning needs initial weights",
    fix="Set checkpoint.pretrained_checkpoint, or checkpoint.finetune=false.",
    fails={"finetune": True},
    passes={"pretrained_checkpoint": "/checkpoints/base"},
    implied_by="CK41",
)
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


@checkpoint_rule(
    "V066",
    why="a background save needs a folder, and a worker that outlives the single save",
    fix="Set checkpoint.save and checkpoint.use_persistent_ckpt_worker=true, or async_save=false.",
    fails={"async_save": True, "use_persistent_ckpt_worker": True},
    passes={"save": "checkpoints"},
    fallback={"async_save": False},
)
def async_save_has_folder(async_save, save, use_persistent_ckpt_worker):
    """Check that a background save has a folder and a persistent worker."""
    if async_save and save is None:
        return "async_save=true, but save is not set"
    if async_save and not use_persistent_ckpt_worker:
        return "async_save=true with use_persistent_ckpt_worker=false"
    return None


@checkpoint_rule(
    "V067",
    why="the Hugging Face format is written from complete weights on the shared file system",
    fix="Use checkpoint.ckpt_format=torch_dist and no local non-persistent checkpoints.",
    fails={"also_save_hf_checkpoint": True, "ckpt_format": "fsdp_dtensor"},
    passes={"ckpt_format": "torch_dist"},
)
def hugging_face_has_weights(also_save_hf_checkpoint, ckpt_format, non_persistent_ckpt_type):
    """Check that the saved weights can be exported in Hugging Face format."""
    if also_save_hf_checkpoint and ckpt_format == "fsdp_dtensor":
        return "also_save_hf_checkpoint=true with ckpt_format=fsdp_dtensor"
    if also_save_hf_checkpoint and non_persistent_ckpt_type == "local":
        return "also_save_hf_checkpoint=true with non_persistent_ckpt_type=local"
    return None


@checkpoint_rule(
    "CK01",
    why="-1 keeps every checkpoint and a positive number keeps that many; 0 would delete the newest one",
    fix="Set checkpoint.most_recent_k=-1, or to 1 or more.",
    fails={"most_recent_k": 0},
    passes={"most_recent_k": 2},
)
def most_recent_k_is_valid(most_recent_k):
    """Check the number of checkpoints to keep."""
    good = most_recent_k is not None and (most_recent_k == -1 or most_recent_k >= 1)
    return None if good else f"most_recent_k={most_recent_k}"


@checkpoint_rule(
    "CK04",
    why="the return_* settings return lists of names, which this package does not use",
    fix="Set checkpoint.dist_ckpt_strictness=log_all or raise_all.",
    fails={"dist_ckpt_strictness": "return_all"},
    passes={"dist_ckpt_strictness": "raise_all"},
)
def strictness_returns_no_lists(dist_ckpt_strictness):
    """Check that the load does not return lists, which have no consumer."""
    return (
        f"dist_ckpt_strictness={dist_ckpt_strictness}" if dist_ckpt_strictness.startswith("return_") else None
    )


@checkpoint_rule(
    "CK10",
    why="it counts the steps between two checkpoints",
    fix="Set it to 1 or more, or to null for none but the last.",
    fails={"save_interval": 0},
    passes={"save_interval": 100},
)
def intervals_are_positive(save_interval, non_persistent_save_interval):
    """Check that the intervals between checkpoints are positive."""
    intervals = {"save_interval": save_interval, "non_persistent_save_interval": non_persistent_save_interval}
    return assigned({name: n for name, n in intervals.items() if isinstance(n, int) and n < 1}) or None


@checkpoint_rule(
    "CK13",
    why="local checkpoints are written and read by that library",
    fix="Install mb-checkpoint[nvrx], or set checkpoint.non_persistent_ckpt_type=global.",
    fails={"non_persistent_ckpt_type": "local", "nvidia_resiliency_ext_installed": False},
    passes={"nvidia_resiliency_ext_installed": True},
)
def local_library_is_installed(non_persistent_ckpt_type, *, nvidia_resiliency_ext_installed):
    """Check that the library for local checkpoints is installed; None if that is not known."""
    missing = non_persistent_ckpt_type == "local" and nvidia_resiliency_ext_installed is False
    return "non_persistent_ckpt_type=local, but nvidia-resiliency-ext is not installed" if missing else None


@checkpoint_rule(
    "CK51",
    why="local checkpoints are written and read by version 0.3 or newer",
    fix="Install mb-checkpoint[nvrx], or set checkpoint.non_persistent_ckpt_type=global.",
    fails={"non_persistent_ckpt_type": "local", "nvidia_resiliency_ext_version": "0.2.1"},
    passes={"nvidia_resiliency_ext_version": "0.3.0"},
)
def local_library_is_supported(non_persistent_ckpt_type, *, nvidia_resiliency_ext_version):
    """Check that the installed library is not too old for local checkpoints."""
    installed = release(nvidia_resiliency_ext_version) or MIN_NVRX
    if non_persistent_ckpt_type != "local" or installed >= MIN_NVRX:
        return None
    return (
        f"non_persistent_ckpt_type=local, but nvidia-resiliency-ext {nvidia_resiliency_ext_version} is "
        "installed"
    )


@facts_rule(
    "CK50",
    why="a run needs Megatron Core, whether or not it uses nvidia-resiliency-ext",
    fix='Install another version (pip install "nvidia-resiliency-ext==0.3.0"), or uninstall it.',
    fails={"nvidia_resiliency_ext_version": "0.4.1"},
    passes={"nvidia_resiliency_ext_version": "0.3.0"},
)
def megatron_can_be_imported(nvidia_resiliency_ext_version):
    """Return why Megatron Core cannot be imported with an installed version of nvidia-resiliency-ext."""
    reason = INCOMPATIBLE_NVRX.get(release(nvidia_resiliency_ext_version)[:2])
    if reason is None:
        return None
    return f"nvidia-resiliency-ext {nvidia_resiliency_ext_version} is installed; {reason}"


@facts_rule(
    "CK52",
    why="loading with Megatron Core 0.19 is tested with torch 2.8 and newer, and fails with 2.6, whose "
    "torch.distributed.checkpoint.load has no argument no_dist",
    fix="Install torch 2.8 or newer.",
    fails={"torch_version": "2.7.1+cu126"},
    passes={"torch_version": "2.8.0a0+nv25.6"},
)
def torch_can_load(torch_version):
    """Check that the installed torch can load checkpoints of Megatron Core."""
    return (
        f"torch {torch_version} is installed" if (release(torch_version) or MIN_TORCH) < MIN_TORCH else None
    )


@checkpoint_rule(
    "CK15",
    why="the class is imported by that name when the run starts",
    fix="Give module and class, such as mine.storage.Manager, and install it or add its folder to PYTHONPATH.",
    fails={"custom_manager_class": "no_such_package.Manager"},
    passes={"custom_manager_class": "mb_checkpoint.DefaultCheckpointManager"},
)
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


@checkpoint_rule(
    "V129",
    why="the configuration and the tokenizer of the exported model are copied from it",
    fix="Set checkpoint.hf_source_path.",
    fails={"also_save_hf_checkpoint": True},
    passes={"hf_source_path": "/models/llama"},
)
def _export_without_source(
    also_save_hf_checkpoint, hf_source_path, model__hf_model_id, tokenizer__tokenizer_model
):
    if not also_save_hf_checkpoint or hf_source_path or model__hf_model_id or tokenizer__tokenizer_model:
        return None
    return "is true, but no Hugging Face model is set"


@checkpoint_rule(
    "V130",
    why="this format stores the shards of Megatron-FSDP",
    fix="Set checkpoint.ckpt_format=torch_dist, or ddp.use_megatron_fsdp=true and dist.use_torch_fsdp2=false.",
    fails={"ckpt_format": "fsdp_dtensor", "save": "checkpoints"},
    passes={"ddp__use_megatron_fsdp": True},
)
def _format_of_other_sharding(
    ckpt_format, save, load, dist__use_torch_fsdp2, ddp__use_megatron_fsdp, dist__use_megatron_fsdp
):
    if ckpt_format != "fsdp_dtensor" or not (save or load):
        return None
    if not (ddp__use_megatron_fsdp or dist__use_megatron_fsdp):
        return "is fsdp_dtensor, but use_megatron_fsdp is false"
    return "is fsdp_dtensor, but use_torch_fsdp2 is true" if dist__use_torch_fsdp2 else None


@checkpoint_rule(
    "V175",
    why="other formats do not support its sharding",
    fix="Set checkpoint.ckpt_format=fsdp_dtensor.",
    fails={"ckpt_format": "torch_dist", "load": "checkpoints", "ddp__use_megatron_fsdp": True},
    passes={"ckpt_format": "fsdp_dtensor"},
)
def _format_without_shards(ckpt_format, save, load, ddp__use_megatron_fsdp, dist__use_megatron_fsdp):
    if not (ddp__use_megatron_fsdp or dist__use_megatron_fsdp) or not (save or load):
        return None
    return None if ckpt_format in (None, "fsdp_dtensor") else f"is {ckpt_format} under Megatron-FSDP"


RULES = rules_in(globals())
