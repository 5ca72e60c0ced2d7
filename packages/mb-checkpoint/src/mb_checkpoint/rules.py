"""Rules of the `checkpoint` section: constraints on its values, and rejection of unsupported options."""

from math import inf

from mb_checkpoint.conditions import (
    async_format,
    async_save_has_folder,
    async_strategy_is_known,
    between,
    ckpt_step_has_folder,
    finetune_has_weights,
    format_is_supported,
    format_without_gloo,
    fsdp_dtensor_is_not_local,
    fsdp_dtensor_without_parallel_load,
    hugging_face_has_weights,
    intervals_are_positive,
    load_has_checkpoint,
    local_dir_is_set,
    local_library_is_installed,
    main_params_without_optimizer,
    manager_package_exists,
    most_recent_k_is_valid,
    non_persistent_needs_save,
    non_persistent_type_is_set,
    non_persistent_type_is_supported,
    pretrained_exists,
    pretrained_has_checkpoint,
    replication_needs_local,
    single_reshardable_form,
    step_exists,
    strictness_returns_no_lists,
)
from mb_checkpoint.paths import path_rule
from mb_checkpoint.rule import Rule as Rule
from mb_checkpoint.unsupported import UNSUPPORTED_OPTIONS
from mb_checkpoint.versions import incompatible_with_megatron, too_old_for_local, torch_cannot_load

MAX_THREADS = 1024
"""Upper bound of the number of threads of one rank; larger values are typing errors."""


def _number(
    number: int, name: str, low: float, high: float = inf, *, why: str, fix: str, passes: float
) -> Rule:
    """Return the rule that a field is within bounds."""
    field = f"checkpoint.{name}"
    return Rule(
        id=f"CK{number}",
        fields=(field,),
        test=between(name, low, high),
        why=why,
        fix=fix,
        fails={field: low - 1},
        passes={field: passes},
    )


NUMBERS = (
    _number(
        16,
        "save_retain_interval",
        1,
        why="it is the interval in steps of the checkpoints that are never deleted",
        fix="Set checkpoint.save_retain_interval to 1 or more, or to null.",
        passes=1000,
    ),
    _number(
        17,
        "async_hang_seconds",
        1,
        why="a background process that writes nothing for this time is killed, and a disk may pause briefly",
        fix="Set checkpoint.async_hang_seconds to 1 or more, such as 600.",
        passes=600,
    ),
    _number(
        18,
        "async_ckpt_cpu_priority",
        0,
        19,
        why="it is a nice value, and a process can only lower its own priority",
        fix="Set checkpoint.async_ckpt_cpu_priority to 0 to 19.",
        passes=10,
    ),
    _number(
        21,
        "async_ckpt_io_priority",
        0,
        3,
        why="the classes are 0 to 3",
        fix="Set checkpoint.async_ckpt_io_priority to 0 to 3, or to null for the default of the system.",
        passes=3,
    ),
    _number(
        37,
        "dist_ckpt_workers",
        1,
        MAX_THREADS,
        why="each rank that writes starts that many threads",
        fix=f"Set checkpoint.dist_ckpt_workers to 1 to {MAX_THREADS}.",
        passes=1,
    ),
    _number(
        38,
        "ckpt_step",
        0,
        why="steps are counted from 0",
        fix="Set checkpoint.ckpt_step to the step of a checkpoint, or leave it out for the newest.",
        passes=100,
    ),
    _number(
        39,
        "replication_jump",
        1,
        why="it is the distance in ranks between two holders of the same copy",
        fix="Set checkpoint.replication_jump to the number of ranks on a node, or to null.",
        passes=8,
    ),
    _number(
        40,
        "replication_factor",
        1,
        why="it counts the nodes that hold each copy",
        fix="Set checkpoint.replication_factor to 2 or more.",
        passes=2,
    ),
)

_MANAGER = "checkpoint.custom_manager_class"

_SOURCE: dict[str, object] = {
    _MANAGER: None,
    "checkpoint.finetune": False,
    "checkpoint.non_persistent_ckpt_type": None,
    "checkpoint.non_persistent_global_ckpt_dir": None,
    "checkpoint.non_persistent_local_ckpt_dir": None,
    "facts.same_machine": True,
}

CONSISTENCY = (
    Rule(
        id="V064",
        fields=("checkpoint.pretrained_checkpoint",),
        test=pretrained_exists,
        why="a run with initial weights must not start from random ones",
        fix="Set checkpoint.pretrained_checkpoint to an existing folder, or leave it out.",
        fails={"checkpoint.pretrained_checkpoint": "/no/such/checkpoint"},
        passes={"checkpoint.pretrained_checkpoint": None},
    ),
    Rule(
        id="CK41",
        fields=(
            "checkpoint.load",
            "checkpoint.save",
            "checkpoint.finetune",
            "checkpoint.non_persistent_ckpt_type",
            "checkpoint.non_persistent_global_ckpt_dir",
            "checkpoint.non_persistent_local_ckpt_dir",
            _MANAGER,
            "facts.same_machine",
        ),
        test=load_has_checkpoint,
        why="a run that names its source must not start from random weights; only a load equal to save may be empty",
        fix="Correct checkpoint.load, or leave it out to resume from the run's own folder.",
        fails={**_SOURCE, "checkpoint.load": "/no/such/run", "checkpoint.save": "runs/new/checkpoints"},
        passes={
            **_SOURCE,
            "checkpoint.load": "runs/new/checkpoints",
            "checkpoint.save": "runs/new/checkpoints",
        },
    ),
    Rule(
        id="CK42",
        fields=("checkpoint.pretrained_checkpoint", _MANAGER, "facts.same_machine"),
        test=pretrained_has_checkpoint,
        why="a run with initial weights must not start from random ones",
        fix="Name a folder with trackers and iter_* folders, or one iter_* folder.",
        fails={"checkpoint.pretrained_checkpoint": "/", _MANAGER: None, "facts.same_machine": True},
        passes={"checkpoint.pretrained_checkpoint": None, _MANAGER: None, "facts.same_machine": True},
    ),
    Rule(
        id="CK43",
        fields=("checkpoint.ckpt_step", "checkpoint.load", _MANAGER, "facts.same_machine"),
        test=step_exists,
        why="there would be nothing to load",
        fix="Name one of these steps, or leave checkpoint.ckpt_step out for the newest.",
        fails={
            "checkpoint.ckpt_step": 100,
            "checkpoint.load": "/",
            _MANAGER: None,
            "facts.same_machine": True,
        },
        passes={
            "checkpoint.ckpt_step": None,
            "checkpoint.load": "/",
            _MANAGER: None,
            "facts.same_machine": True,
        },
    ),
    Rule(
        id="V065",
        fields=("checkpoint.load_main_params_from_ckpt", "checkpoint.load_optim"),
        test=main_params_without_optimizer,
        why="the optimizer state already contains the main parameters",
        fix="Set checkpoint.load_optim=false or checkpoint.load_main_params_from_ckpt=false.",
        fails={"checkpoint.load_main_params_from_ckpt": True, "checkpoint.load_optim": True},
        passes={"checkpoint.load_main_params_from_ckpt": True, "checkpoint.load_optim": False},
    ),
    Rule(
        id="V066",
        fields=("checkpoint.async_save", "checkpoint.save", "checkpoint.use_persistent_ckpt_worker"),
        test=async_save_has_folder,
        why="a background save needs a folder, and a worker that outlives the single save",
        fix="Set checkpoint.save and checkpoint.use_persistent_ckpt_worker=true, or async_save=false.",
        fails={
            "checkpoint.async_save": True,
            "checkpoint.save": None,
            "checkpoint.use_persistent_ckpt_worker": True,
        },
        passes={
            "checkpoint.async_save": True,
            "checkpoint.save": "checkpoints",
            "checkpoint.use_persistent_ckpt_worker": True,
        },
    ),
    Rule(
        id="V067",
        fields=(
            "checkpoint.also_save_hf_checkpoint",
            "checkpoint.ckpt_format",
            "checkpoint.non_persistent_ckpt_type",
        ),
        test=hugging_face_has_weights,
        why="the Hugging Face format is written from complete weights on the shared file system",
        fix="Use checkpoint.ckpt_format=torch_dist and no local non-persistent checkpoints.",
        fails={
            "checkpoint.also_save_hf_checkpoint": True,
            "checkpoint.ckpt_format": "fsdp_dtensor",
            "checkpoint.non_persistent_ckpt_type": None,
        },
        passes={
            "checkpoint.also_save_hf_checkpoint": True,
            "checkpoint.ckpt_format": "torch_dist",
            "checkpoint.non_persistent_ckpt_type": None,
        },
    ),
    Rule(
        id="V068",
        fields=("checkpoint.ckpt_step", "checkpoint.load"),
        test=ckpt_step_has_folder,
        why="the step is searched for in the folder of checkpoint.load",
        fix="Set checkpoint.load, or leave out checkpoint.ckpt_step.",
        fails={"checkpoint.ckpt_step": 100, "checkpoint.load": None},
        passes={"checkpoint.ckpt_step": 100, "checkpoint.load": "checkpoints"},
    ),
    Rule(
        id="V069",
        fields=(
            "checkpoint.dist_ckpt_optim_fully_reshardable",
            "checkpoint.distrib_optim_fully_reshardable_mem_efficient",
        ),
        test=single_reshardable_form,
        why="they are alternative ways to write the same state",
        fix="Set checkpoint.distrib_optim_fully_reshardable_mem_efficient=false.",
        fails={
            "checkpoint.dist_ckpt_optim_fully_reshardable": True,
            "checkpoint.distrib_optim_fully_reshardable_mem_efficient": True,
        },
        passes={
            "checkpoint.dist_ckpt_optim_fully_reshardable": True,
            "checkpoint.distrib_optim_fully_reshardable_mem_efficient": False,
        },
    ),
    Rule(
        id="V244",
        fields=("checkpoint.finetune", "checkpoint.pretrained_checkpoint", "checkpoint.load"),
        test=finetune_has_weights,
        why="fine-tuning needs initial weights",
        fix="Set checkpoint.pretrained_checkpoint, or checkpoint.finetune=false.",
        fails={
            "checkpoint.finetune": True,
            "checkpoint.pretrained_checkpoint": None,
            "checkpoint.load": None,
        },
        passes={
            "checkpoint.finetune": True,
            "checkpoint.pretrained_checkpoint": "/checkpoints/base",
            "checkpoint.load": None,
        },
    ),
    Rule(
        id="V131",
        fields=("checkpoint.async_save", "checkpoint.ckpt_format"),
        test=async_format,
        why="only the distributed layouts can be written in the background",
        fix="Set checkpoint.ckpt_format=torch_dist.",
        fails={"checkpoint.async_save": True, "checkpoint.ckpt_format": "torch"},
        passes={"checkpoint.async_save": True, "checkpoint.ckpt_format": "torch_dist"},
    ),
    Rule(
        id="V135",
        fields=(
            "dist.use_gloo_process_groups",
            "optimizer.use_distributed_optimizer",
            "checkpoint.ckpt_format",
        ),
        test=format_without_gloo,
        why="the older layouts gather the optimizer state through Gloo",
        fix="Set checkpoint.ckpt_format=torch_dist or dist.use_gloo_process_groups=true.",
        fails={
            "dist.use_gloo_process_groups": False,
            "optimizer.use_distributed_optimizer": True,
            "checkpoint.ckpt_format": "torch",
        },
        passes={
            "dist.use_gloo_process_groups": False,
            "optimizer.use_distributed_optimizer": True,
            "checkpoint.ckpt_format": "torch_dist",
        },
    ),
    Rule(
        id="CK01",
        fields=("checkpoint.most_recent_k",),
        test=most_recent_k_is_valid,
        why="-1 keeps every checkpoint and a positive number keeps that many; 0 would delete the newest one",
        fix="Set checkpoint.most_recent_k=-1, or to 1 or more.",
        fails={"checkpoint.most_recent_k": 0},
        passes={"checkpoint.most_recent_k": 2},
    ),
    Rule(
        id="CK02",
        fields=("checkpoint.storage_writers_per_rank",),
        test=between("storage_writers_per_rank", 1, MAX_THREADS),
        why="each rank that writes starts that many threads, and a file for each",
        fix=f"Set checkpoint.storage_writers_per_rank to 1 to {MAX_THREADS}.",
        fails={"checkpoint.storage_writers_per_rank": 0},
        passes={"checkpoint.storage_writers_per_rank": 2},
    ),
    Rule(
        id="CK03",
        fields=("checkpoint.ckpt_format",),
        test=format_is_supported,
        why="mb-checkpoint writes and reads Megatron Core's torch_dist, and fsdp_dtensor under Megatron-FSDP",
        fix="Set checkpoint.ckpt_format=torch_dist.",
        fails={"checkpoint.ckpt_format": "torch_dcp"},
        passes={"checkpoint.ckpt_format": "fsdp_dtensor"},
    ),
    Rule(
        id="CK04",
        fields=("checkpoint.dist_ckpt_strictness",),
        test=strictness_returns_no_lists,
        why="the return_* settings return lists of names, which this package does not use",
        fix="Set checkpoint.dist_ckpt_strictness=log_all or raise_all.",
        fails={"checkpoint.dist_ckpt_strictness": "return_all"},
        passes={"checkpoint.dist_ckpt_strictness": "raise_all"},
    ),
    Rule(
        id="CK05",
        fields=("checkpoint.non_persistent_save_interval", "checkpoint.non_persistent_ckpt_type"),
        test=non_persistent_type_is_set,
        why="a non-persistent checkpoint is stored either on the shared file system or on each node",
        fix="Set checkpoint.non_persistent_ckpt_type=global.",
        fails={
            "checkpoint.non_persistent_save_interval": 5,
            "checkpoint.non_persistent_ckpt_type": None,
        },
        passes={
            "checkpoint.non_persistent_save_interval": 5,
            "checkpoint.non_persistent_ckpt_type": "global",
        },
    ),
    Rule(
        id="CK14",
        fields=("checkpoint.non_persistent_save_interval", "checkpoint.save"),
        test=non_persistent_needs_save,
        why="a run that saves nothing saves no non-persistent checkpoints either",
        fix="Set checkpoint.save, or checkpoint.non_persistent_save_interval=null.",
        fails={"checkpoint.non_persistent_save_interval": 5, "checkpoint.save": None},
        passes={"checkpoint.non_persistent_save_interval": 5, "checkpoint.save": "checkpoints"},
    ),
    Rule(
        id="CK06",
        fields=("checkpoint.non_persistent_ckpt_type",),
        test=non_persistent_type_is_supported,
        why="no trainer keeps checkpoints in memory; it would fail at the first save",
        fix="Set checkpoint.non_persistent_ckpt_type=global or local.",
        fails={"checkpoint.non_persistent_ckpt_type": "in_memory"},
        passes={"checkpoint.non_persistent_ckpt_type": "global"},
    ),
    Rule(
        id="CK07",
        fields=("checkpoint.non_persistent_ckpt_type", "checkpoint.non_persistent_local_ckpt_dir"),
        test=local_dir_is_set,
        why="local checkpoints are stored in a folder on each node",
        fix="Set checkpoint.non_persistent_local_ckpt_dir.",
        fails={
            "checkpoint.non_persistent_ckpt_type": "local",
            "checkpoint.non_persistent_local_ckpt_dir": None,
        },
        passes={
            "checkpoint.non_persistent_ckpt_type": "local",
            "checkpoint.non_persistent_local_ckpt_dir": "/local/checkpoints",
        },
    ),
    Rule(
        id="CK08",
        fields=("checkpoint.replication", "checkpoint.non_persistent_ckpt_type"),
        test=replication_needs_local,
        why="only local non-persistent checkpoints are copied to other nodes",
        fix="Set checkpoint.non_persistent_ckpt_type=local or checkpoint.replication=false.",
        fails={"checkpoint.replication": True, "checkpoint.non_persistent_ckpt_type": "global"},
        passes={"checkpoint.replication": True, "checkpoint.non_persistent_ckpt_type": "local"},
    ),
    Rule(
        id="CK09",
        fields=("checkpoint.async_strategy",),
        test=async_strategy_is_known,
        why="Megatron Core has the strategies mcore and nvrx",
        fix="Set checkpoint.async_strategy=mcore.",
        fails={"checkpoint.async_strategy": "thread"},
        passes={"checkpoint.async_strategy": "mcore"},
    ),
    Rule(
        id="CK10",
        fields=("checkpoint.save_interval", "checkpoint.non_persistent_save_interval"),
        test=intervals_are_positive,
        why="it counts the steps between two checkpoints",
        fix="Set it to 1 or more, or to null for none but the last.",
        fails={"checkpoint.save_interval": 0, "checkpoint.non_persistent_save_interval": None},
        passes={"checkpoint.save_interval": 100, "checkpoint.non_persistent_save_interval": None},
    ),
    Rule(
        id="CK13",
        fields=("checkpoint.non_persistent_ckpt_type", "facts.nvidia_resiliency_ext_installed"),
        test=local_library_is_installed,
        why="local checkpoints are written and read by that library",
        fix="Install mb-checkpoint[nvrx], or set checkpoint.non_persistent_ckpt_type=global.",
        fails={
            "checkpoint.non_persistent_ckpt_type": "local",
            "facts.nvidia_resiliency_ext_installed": False,
        },
        passes={
            "checkpoint.non_persistent_ckpt_type": "local",
            "facts.nvidia_resiliency_ext_installed": True,
        },
    ),
    Rule(
        id="CK50",
        fields=("facts.nvidia_resiliency_ext_version",),
        test=incompatible_with_megatron,
        why="a run needs Megatron Core, whether or not it uses nvidia-resiliency-ext",
        fix='Install another version (pip install "nvidia-resiliency-ext==0.3.0"), or uninstall it.',
        fails={"facts.nvidia_resiliency_ext_version": "0.4.1"},
        passes={"facts.nvidia_resiliency_ext_version": "0.3.0"},
    ),
    Rule(
        id="CK52",
        fields=("facts.torch_version",),
        test=torch_cannot_load,
        why="Megatron Core 0.19 loads with torch.distributed.checkpoint.load(no_dist=...), which 2.6 lacks",
        fix="Install torch 2.7 or newer.",
        fails={"facts.torch_version": "2.6.0+cu124"},
        passes={"facts.torch_version": "2.7.0a0+nv25.3"},
    ),
    Rule(
        id="CK51",
        fields=("checkpoint.non_persistent_ckpt_type", "facts.nvidia_resiliency_ext_version"),
        test=too_old_for_local,
        why="local checkpoints are written and read by version 0.3 or newer",
        fix="Install mb-checkpoint[nvrx], or set checkpoint.non_persistent_ckpt_type=global.",
        fails={
            "checkpoint.non_persistent_ckpt_type": "local",
            "facts.nvidia_resiliency_ext_version": "0.2.1",
        },
        passes={
            "checkpoint.non_persistent_ckpt_type": "local",
            "facts.nvidia_resiliency_ext_version": "0.3.0",
        },
    ),
    Rule(
        id="CK11",
        fields=("checkpoint.ckpt_format", "checkpoint.non_persistent_ckpt_type"),
        test=fsdp_dtensor_is_not_local,
        why="local checkpoints are stored as Megatron Core's own pieces, which Megatron-FSDP does not have",
        fix="Set checkpoint.non_persistent_ckpt_type=global.",
        fails={
            "checkpoint.ckpt_format": "fsdp_dtensor",
            "checkpoint.non_persistent_ckpt_type": "local",
        },
        passes={
            "checkpoint.ckpt_format": "fsdp_dtensor",
            "checkpoint.non_persistent_ckpt_type": "global",
        },
    ),
    Rule(
        id="CK12",
        fields=("checkpoint.ckpt_format", "checkpoint.fully_parallel_load"),
        test=fsdp_dtensor_without_parallel_load,
        why="under Megatron-FSDP each rank reads its own shards and no others, so there is nothing to exchange",
        fix="Set checkpoint.fully_parallel_load=false.",
        fails={"checkpoint.ckpt_format": "fsdp_dtensor", "checkpoint.fully_parallel_load": True},
        passes={"checkpoint.ckpt_format": "torch_dist", "checkpoint.fully_parallel_load": True},
    ),
    Rule(
        id="CK15",
        fields=("checkpoint.custom_manager_class",),
        test=manager_package_exists,
        why="the class is imported by that name when the run starts",
        fix="Give module and class, such as mine.storage.Manager, and install it or add its folder to PYTHONPATH.",
        fails={"checkpoint.custom_manager_class": "no_such_package.Manager"},
        passes={"checkpoint.custom_manager_class": "mb_checkpoint.DefaultCheckpointManager"},
    ),
)

PATH_FIELDS = (
    "checkpoint.save",
    "checkpoint.load",
    "checkpoint.pretrained_checkpoint",
    "checkpoint.non_persistent_global_ckpt_dir",
    "checkpoint.non_persistent_local_ckpt_dir",
)
"""Fields that name files or folders."""

_PATHS = tuple(Rule(**path_rule(number, path)) for number, path in enumerate(PATH_FIELDS, start=1))

RULES: tuple[Rule, ...] = (*CONSISTENCY, *NUMBERS, *UNSUPPORTED_OPTIONS, *_PATHS)


def violations(section: object) -> list[str]:
    """Apply every rule that reads only the checkpoint section; return one line per violated rule of severity "error".

    For callers without a complete configuration; nothing is changed.
    """
    lines = []
    for rule in RULES:
        owners = {field.partition(".")[0] for field in rule.fields}
        if owners != {"checkpoint"} or rule.severity != "error":
            continue
        names = [field.partition(".")[2] for field in rule.fields]
        problem = rule.test(*(getattr(section, name) for name in names))
        if problem is not None:
            lines.append(f"{rule.fields[0]}: {problem}, because {rule.why}. {rule.fix} [{rule.id}]")
    return lines
