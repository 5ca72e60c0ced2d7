"""Rules of the `checkpoint` section: constraints on its values, and rejection of unsupported options."""

from mb_checkpoint.errors import CheckpointRulesError
from mb_checkpoint.rules import other_sections
from mb_checkpoint.rules.conditions import (
    DISTRIBUTED_FORMATS,
    async_save_has_folder,
    best_metric_is_measured,
    finetune_has_weights,
    hugging_face_has_weights,
    intervals_are_positive,
    load_has_checkpoint,
    local_library_is_installed,
    local_library_is_supported,
    manager_package_exists,
    megatron_can_be_imported,
    most_recent_k_is_valid,
    options_are_not_secret,
    pretrained_exists,
    pretrained_has_checkpoint,
    source_is_folder,
    step_exists,
    storage_can_be_opened,
    strictness_returns_no_lists,
    torch_can_load,
)
from mb_checkpoint.rules.ranges import MAX_THREADS, NUMBERS
from mb_checkpoint.rules.unsupported import UNSUPPORTED_OPTIONS
from mb_schema.paths import path_rule
from mb_schema.rule_kinds import SET, among, excludes, in_range, one_of, other_than, requires
from mb_schema.rules import Problem, Rule, check, refuse

_MANAGER = "checkpoint.custom_manager_class"

CONSISTENCY = (
    pretrained_exists,
    load_has_checkpoint,
    pretrained_has_checkpoint,
    step_exists,
    storage_can_be_opened,
    options_are_not_secret,
    requires(
        "CK55",
        {"checkpoint.storage": SET},
        {"checkpoint.save": SET},
        why="checkpoints are copied from that folder",
        fix="Set checkpoint.save, or leave checkpoint.storage out.",
        fails={"checkpoint.storage": "s3://bucket/run"},
        passes={"checkpoint.save": "checkpoints"},
    ),
    excludes(
        "CK56",
        {"checkpoint.storage": SET, _MANAGER: SET},
        why="only the default manager copies checkpoints to a storage",
        fix="Leave checkpoint.storage or checkpoint.custom_manager_class out.",
        fails={
            "checkpoint.storage": "s3://bucket/run",
            "checkpoint.custom_manager_class": "mine.storage.Manager",
        },
    ),
    requires(
        "CK57",
        {"checkpoint.storage_options": other_than({})},
        {"checkpoint.storage": SET},
        why="the options would have no effect",
        fix="Set checkpoint.storage, or leave checkpoint.storage_options out.",
        fails={"checkpoint.storage_options": {"anon": True}},
        passes={"checkpoint.storage": "s3://bucket/run"},
    ),
    best_metric_is_measured,
    excludes(
        "CK61",
        {"checkpoint.best_metric": SET, _MANAGER: SET},
        why="only the default manager keeps the best checkpoint",
        fix="Leave checkpoint.best_metric or checkpoint.custom_manager_class out.",
        fails={
            "checkpoint.best_metric": "lm loss",
            "checkpoint.custom_manager_class": "mine.storage.Manager",
        },
    ),
    requires(
        "CK62",
        {"checkpoint.best_metric_mode": other_than("min")},
        {"checkpoint.best_metric": SET},
        why="the mode would have no effect",
        fix="Set checkpoint.best_metric, or leave checkpoint.best_metric_mode out.",
        fails={"checkpoint.best_metric_mode": "max"},
        passes={"checkpoint.best_metric": "accuracy"},
    ),
    excludes(
        "V065",
        {"checkpoint.load_main_params_from_ckpt": True, "checkpoint.load_optim": True},
        why="the optimizer state already contains the main parameters",
        fix="Set checkpoint.load_optim=false or checkpoint.load_main_params_from_ckpt=false.",
    ),
    async_save_has_folder,
    hugging_face_has_weights,
    excludes(
        "CK22",
        {"checkpoint.also_save_hf_checkpoint": True, "checkpoint.custom_manager_class": SET},
        why="the export reads checkpoints of the default manager",
        fix="Set checkpoint.also_save_hf_checkpoint=false, or leave out checkpoint.custom_manager_class.",
        fails={"checkpoint.custom_manager_class": "my_package.Manager"},
    ),
    requires(
        "CK33",
        {"checkpoint.hf_source_path": SET},
        {"checkpoint.also_save_hf_checkpoint": True},
        why="its files are copied to that export only",
        fix="Set checkpoint.also_save_hf_checkpoint=true, or leave out checkpoint.hf_source_path.",
        fails={"checkpoint.hf_source_path": "models/llama"},
    ),
    requires(
        "CK35",
        {"checkpoint.hf_distributed_save": True},
        {"checkpoint.also_save_hf_checkpoint": True},
        why="it divides that export between ranks",
        fix="Set checkpoint.also_save_hf_checkpoint=true, or checkpoint.hf_distributed_save=false.",
    ),
    requires(
        "CK36",
        {"checkpoint.hf_save_every_n_ranks": other_than(1)},
        {"checkpoint.hf_distributed_save": True},
        why="otherwise one rank exports",
        fix="Set checkpoint.hf_distributed_save=true, or leave out checkpoint.hf_save_every_n_ranks.",
        fails={"checkpoint.hf_save_every_n_ranks": 8},
    ),
    source_is_folder,
    requires(
        "CK24",
        {"checkpoint.use_mp_args_from_checkpoint_args": True},
        {"checkpoint.use_checkpoint_args": True},
        why="the parallel layout is taken with the other settings of a checkpoint only",
        fix="Set checkpoint.use_checkpoint_args=true, or checkpoint.use_mp_args_from_checkpoint_args=false.",
    ),
    requires(
        "V068",
        {"checkpoint.ckpt_step": SET},
        {"checkpoint.load": SET},
        why="the step is searched for in the folder of checkpoint.load",
        fix="Set checkpoint.load, or leave out checkpoint.ckpt_step.",
        fails={"checkpoint.ckpt_step": 100},
        passes={"checkpoint.load": "checkpoints"},
    ),
    excludes(
        "V069",
        {
            "checkpoint.dist_ckpt_optim_fully_reshardable": True,
            "checkpoint.distrib_optim_fully_reshardable_mem_efficient": True,
        },
        why="they are alternative ways to write the same state",
        fix="Set checkpoint.distrib_optim_fully_reshardable_mem_efficient=false.",
    ),
    finetune_has_weights,
    requires(
        "V131",
        {"checkpoint.async_save": True},
        {"checkpoint.ckpt_format": among(*DISTRIBUTED_FORMATS)},
        why="only the distributed layouts can be written in the background",
        fix="Set checkpoint.ckpt_format=torch_dist.",
        fails={"checkpoint.ckpt_format": "torch"},
        passes={"checkpoint.ckpt_format": "torch_dist"},
        fallback={"checkpoint.async_save": False},
        implied_by="CK03",
    ),
    excludes(
        "V135",
        {
            "dist.use_gloo_process_groups": False,
            "optimizer.use_distributed_optimizer": True,
            "checkpoint.ckpt_format": other_than(*DISTRIBUTED_FORMATS),
        },
        why="the older layouts gather the optimizer state through Gloo",
        fix="Set checkpoint.ckpt_format=torch_dist or dist.use_gloo_process_groups=true.",
        fails={"checkpoint.ckpt_format": "torch"},
    ),
    most_recent_k_is_valid,
    in_range(
        "CK02",
        "checkpoint.storage_writers_per_rank",
        1,
        MAX_THREADS,
        why="each rank that writes starts that many threads, and a file for each",
        fix=f"Set checkpoint.storage_writers_per_rank to 1 to {MAX_THREADS}.",
        fails=0,
        passes=2,
    ),
    one_of(
        "CK03",
        "checkpoint.ckpt_format",
        DISTRIBUTED_FORMATS,
        why="mb-checkpoint writes and reads Megatron Core's torch_dist, and fsdp_dtensor under Megatron-FSDP",
        fix="Set checkpoint.ckpt_format=torch_dist.",
        fails="torch_dcp",
        passes="fsdp_dtensor",
    ),
    strictness_returns_no_lists,
    requires(
        "CK05",
        {"checkpoint.non_persistent_save_interval": SET},
        {"checkpoint.non_persistent_ckpt_type": SET},
        why="a non-persistent checkpoint is stored either on the shared file system or on each node",
        fix="Set checkpoint.non_persistent_ckpt_type=global.",
        fails={"checkpoint.non_persistent_save_interval": 5},
        passes={"checkpoint.non_persistent_ckpt_type": "global"},
    ),
    requires(
        "CK14",
        {"checkpoint.non_persistent_save_interval": SET},
        {"checkpoint.save": SET},
        why="a run that saves nothing saves no non-persistent checkpoints either",
        fix="Set checkpoint.save, or checkpoint.non_persistent_save_interval=null.",
        fails={"checkpoint.non_persistent_save_interval": 5},
        passes={"checkpoint.save": "checkpoints"},
    ),
    one_of(
        "CK06",
        "checkpoint.non_persistent_ckpt_type",
        (None, "global", "local"),
        why="no trainer keeps checkpoints in memory; it would fail at the first save",
        fix="Set checkpoint.non_persistent_ckpt_type=global or local.",
        fails="in_memory",
        passes="global",
    ),
    requires(
        "CK07",
        {"checkpoint.non_persistent_ckpt_type": "local"},
        {"checkpoint.non_persistent_local_ckpt_dir": SET},
        why="local checkpoints are stored in a folder on each node",
        fix="Set checkpoint.non_persistent_local_ckpt_dir.",
        passes={"checkpoint.non_persistent_local_ckpt_dir": "/local/checkpoints"},
    ),
    requires(
        "CK08",
        {"checkpoint.replication": True},
        {"checkpoint.non_persistent_ckpt_type": "local"},
        why="only local non-persistent checkpoints are copied to other nodes",
        fix="Set checkpoint.non_persistent_ckpt_type=local or checkpoint.replication=false.",
        fails={"checkpoint.non_persistent_ckpt_type": "global"},
    ),
    one_of(
        "CK09",
        "checkpoint.async_strategy",
        ("mcore", "nvrx"),
        why="Megatron Core has the strategies mcore and nvrx",
        fix="Set checkpoint.async_strategy=mcore.",
        fails="thread",
    ),
    intervals_are_positive,
    local_library_is_installed,
    megatron_can_be_imported,
    torch_can_load,
    local_library_is_supported,
    excludes(
        "CK11",
        {"checkpoint.ckpt_format": "fsdp_dtensor", "checkpoint.non_persistent_ckpt_type": "local"},
        why="local checkpoints are stored as Megatron Core's own pieces, which Megatron-FSDP does not have",
        fix="Set checkpoint.non_persistent_ckpt_type=global.",
    ),
    excludes(
        "CK12",
        {"checkpoint.ckpt_format": "fsdp_dtensor", "checkpoint.fully_parallel_load": True},
        why="under Megatron-FSDP each rank reads its own shards and no others, so there is nothing to exchange",
        fix="Set checkpoint.fully_parallel_load=false.",
        passes={"checkpoint.ckpt_format": "torch_dist"},
        fallback={"checkpoint.fully_parallel_load": False},
    ),
    manager_package_exists,
)

PATH_FIELDS = (
    "checkpoint.save",
    "checkpoint.load",
    "checkpoint.pretrained_checkpoint",
    "checkpoint.non_persistent_global_ckpt_dir",
    "checkpoint.non_persistent_local_ckpt_dir",
    "checkpoint.hf_source_path",
)
"""Fields that name files or folders."""

_PATHS = tuple(path_rule(number, path) for number, path in enumerate(PATH_FIELDS, start=1))

RULES: tuple[Rule, ...] = (*CONSISTENCY, *other_sections.RULES, *NUMBERS, *UNSUPPORTED_OPTIONS, *_PATHS)


def violations(section: object) -> list[Problem]:
    """Return the violated rules of severity "error" that read only the checkpoint section. Changes nothing."""
    problems = check({"checkpoint": section}, RULES)
    return [problem for problem in problems if problem.severity == "error"]


def reject_violations(section: object) -> None:
    """Check the checkpoint section on its own.

    Raises:
        CheckpointRulesError: Rules are violated; the message has a line for each.
    """
    refuse({"checkpoint": section}, RULES, error=CheckpointRulesError)
