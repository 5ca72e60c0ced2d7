"""Rules of the `checkpoint` section: constraints on its values, and rejection of unsupported options."""

from functools import partial

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
    manager_package_exists,
    most_recent_k_is_valid,
    options_are_not_secret,
    pretrained_exists,
    pretrained_has_checkpoint,
    source_is_folder,
    step_exists,
    storage_can_be_opened,
    strictness_returns_no_lists,
)
from mb_checkpoint.rules.ranges import MAX_THREADS, NUMBERS
from mb_checkpoint.rules.unsupported import UNSUPPORTED_OPTIONS
from mb_checkpoint.versions import incompatible_with_megatron, too_old_for_local, torch_cannot_load
from mb_schema.paths import path_rule
from mb_schema.rule_kinds import (
    SET,
    among,
    excludes,
    implied_by,
    in_range,
    one_of,
    other_than,
    requires,
    rule,
    section_rule,
    with_fallback,
    within,
)
from mb_schema.rules import Problem, Rule, check, refuse

checkpoint_rule = partial(section_rule, "checkpoint")

_MANAGER = "checkpoint.custom_manager_class"

CONSISTENCY = (
    checkpoint_rule(
        "V064",
        why="a run with initial weights must not start from random ones",
        fix="Set checkpoint.pretrained_checkpoint to an existing folder, or leave it out.",
        fails={"pretrained_checkpoint": "/no/such/checkpoint"},
        passes={"pretrained_checkpoint": None},
    )(pretrained_exists),
    checkpoint_rule(
        "CK41",
        why="a run that names its source must not start from random weights; only a load equal to save may be empty",
        fix="Correct checkpoint.load, or leave it out to resume from the run's own folder.",
        fails={"load": "/no/such/run", "save": "runs/new/checkpoints", "same_machine": True},
        passes={"load": "runs/new/checkpoints"},
    )(load_has_checkpoint),
    checkpoint_rule(
        "CK42",
        why="a run with initial weights must not start from random ones",
        fix="Name a folder with trackers and iter_* folders, or one iter_* folder.",
        fails={"pretrained_checkpoint": "/"},
        passes={"pretrained_checkpoint": None},
    )(pretrained_has_checkpoint),
    implied_by(
        "CK41",
        rule(
            "CK43",
            ("checkpoint.ckpt_step", "checkpoint.load", _MANAGER, "facts.same_machine", "checkpoint.storage"),
            step_exists,
            why="there would be nothing to load",
            fix="Name one of these steps, or leave checkpoint.ckpt_step out for the newest.",
            fails=(100, "/", None, True, None),
            passes=(100, "/", None, True, "s3://bucket/run"),
        ),
    ),
    checkpoint_rule(
        "CK53",
        why="the checkpoints of the run would not be copied there",
        fix="Correct checkpoint.storage and checkpoint.storage_options, or leave checkpoint.storage out.",
        fails={"storage": "nonsense://bucket/run"},
        passes={"storage": "/mnt/storage/run"},
    )(storage_can_be_opened),
    checkpoint_rule(
        "CK54",
        why="the section is stored with every checkpoint",
        fix="Put credentials into the environment or the configuration file of the provider, such as AWS_PROFILE.",
        fails={"storage_options": {"secret": "x"}},
        passes={"storage_options": {"endpoint_url": "http://127.0.0.1:9000"}},
    )(options_are_not_secret),
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
    checkpoint_rule(
        "CK60",
        why="a checkpoint is compared by the metric of an evaluation at its step",
        fix="Set checkpoint.save_interval to a multiple of validation.eval_interval.",
        fails={"best_metric": "lm loss", "save_interval": 100, "validation__eval_interval": 40},
        passes={"validation__eval_interval": 50},
    )(best_metric_is_measured),
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
    checkpoint_rule(
        "V066",
        why="a background save needs a folder, and a worker that outlives the single save",
        fix="Set checkpoint.save and checkpoint.use_persistent_ckpt_worker=true, or async_save=false.",
        fails={"async_save": True, "use_persistent_ckpt_worker": True},
        passes={"save": "checkpoints"},
    )(async_save_has_folder),
    checkpoint_rule(
        "V067",
        why="the Hugging Face format is written from complete weights on the shared file system",
        fix="Use checkpoint.ckpt_format=torch_dist and no local non-persistent checkpoints.",
        fails={"also_save_hf_checkpoint": True, "ckpt_format": "fsdp_dtensor"},
        passes={"ckpt_format": "torch_dist"},
    )(hugging_face_has_weights),
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
    checkpoint_rule(
        "CK58",
        why="its small files, such as generation_config.json, are copied from it",
        fix="Name a folder in Hugging Face format, or leave out checkpoint.hf_source_path.",
        fails={"hf_source_path": "/dev/null"},
        passes={"hf_source_path": None},
    )(source_is_folder),
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
    checkpoint_rule(
        "V244",
        why="fine-tuning needs initial weights",
        fix="Set checkpoint.pretrained_checkpoint, or checkpoint.finetune=false.",
        fails={"finetune": True},
        passes={"pretrained_checkpoint": "/checkpoints/base"},
        implied_by="CK41",
    )(finetune_has_weights),
    implied_by(
        "CK03",
        requires(
            "V131",
            {"checkpoint.async_save": True},
            {"checkpoint.ckpt_format": among(*DISTRIBUTED_FORMATS)},
            why="only the distributed layouts can be written in the background",
            fix="Set checkpoint.ckpt_format=torch_dist.",
            fails={"checkpoint.ckpt_format": "torch"},
            passes={"checkpoint.ckpt_format": "torch_dist"},
        ),
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
    checkpoint_rule(
        "CK01",
        why="-1 keeps every checkpoint and a positive number keeps that many; 0 would delete the newest one",
        fix="Set checkpoint.most_recent_k=-1, or to 1 or more.",
        fails={"most_recent_k": 0},
        passes={"most_recent_k": 2},
    )(most_recent_k_is_valid),
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
    checkpoint_rule(
        "CK04",
        why="the return_* settings return lists of names, which this package does not use",
        fix="Set checkpoint.dist_ckpt_strictness=log_all or raise_all.",
        fails={"dist_ckpt_strictness": "return_all"},
        passes={"dist_ckpt_strictness": "raise_all"},
    )(strictness_returns_no_lists),
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
        passes="mcore",
    ),
    rule(
        "CK10",
        within("checkpoint", "save_interval non_persistent_save_interval"),
        intervals_are_positive,
        why="it counts the steps between two checkpoints",
        fix="Set it to 1 or more, or to null for none but the last.",
        fails=(0, None),
        passes=(100, None),
    ),
    checkpoint_rule(
        "CK13",
        why="local checkpoints are written and read by that library",
        fix="Install mb-checkpoint[nvrx], or set checkpoint.non_persistent_ckpt_type=global.",
        fails={"non_persistent_ckpt_type": "local", "nvidia_resiliency_ext_installed": False},
        passes={"nvidia_resiliency_ext_installed": True},
    )(local_library_is_installed),
    rule(
        "CK50",
        "facts.nvidia_resiliency_ext_version",
        incompatible_with_megatron,
        why="a run needs Megatron Core, whether or not it uses nvidia-resiliency-ext",
        fix='Install another version (pip install "nvidia-resiliency-ext==0.3.0"), or uninstall it.',
        fails=("0.4.1",),
        passes=("0.3.0",),
    ),
    rule(
        "CK52",
        "facts.torch_version",
        torch_cannot_load,
        why="loading with Megatron Core 0.19 is tested with torch 2.8 and newer, and fails with 2.6, whose "
        "torch.distributed.checkpoint.load has no argument no_dist",
        fix="Install torch 2.8 or newer.",
        fails=("2.7.1+cu126",),
        passes=("2.8.0a0+nv25.6",),
    ),
    rule(
        "CK51",
        ("checkpoint.non_persistent_ckpt_type", "facts.nvidia_resiliency_ext_version"),
        too_old_for_local,
        why="local checkpoints are written and read by version 0.3 or newer",
        fix="Install mb-checkpoint[nvrx], or set checkpoint.non_persistent_ckpt_type=global.",
        fails=("local", "0.2.1"),
        passes=("local", "0.3.0"),
    ),
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
    ),
    checkpoint_rule(
        "CK15",
        why="the class is imported by that name when the run starts",
        fix="Give module and class, such as mine.storage.Manager, and install it or add its folder to PYTHONPATH.",
        fails={"custom_manager_class": "no_such_package.Manager"},
        passes={"custom_manager_class": "mb_checkpoint.DefaultCheckpointManager"},
    )(manager_package_exists),
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

_FALLBACKS = {
    "V066": "checkpoint.async_save",
    "V131": "checkpoint.async_save",
    "CK12": "checkpoint.fully_parallel_load",
}
"""Rules on what a layout, or a run without saves, does not support -> field that false replaces if a recipe set it."""

RULES: tuple[Rule, ...] = tuple(
    with_fallback(rule, _FALLBACKS[rule.id], False) if rule.id in _FALLBACKS else rule
    for rule in (*CONSISTENCY, *other_sections.RULES, *NUMBERS, *UNSUPPORTED_OPTIONS, *_PATHS)
)


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
