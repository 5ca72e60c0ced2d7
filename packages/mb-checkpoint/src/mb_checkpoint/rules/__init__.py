"""Rules of the `checkpoint` section: constraints on its values, and rejection of unsupported options."""

from math import inf

from mb_checkpoint.errors import CheckpointRulesError
from mb_checkpoint.rules import conditions
from mb_checkpoint.rules.conditions import DISTRIBUTED_FORMATS
from mb_schema.paths import path_rule
from mb_schema.rule_kinds import (
    SET,
    among,
    excludes,
    in_range,
    one_of,
    other_than,
    requires,
    shown,
    unsupported,
)
from mb_schema.rules import Problem, Rule, check, refuse

MAX_THREADS = 1024
"""Upper bound of the number of threads of one rank; larger values are typing errors."""

_MANAGER = "checkpoint.custom_manager_class"

_CONSISTENCY = (
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
    excludes(
        "CK63",
        {"checkpoint.best_metric": "lm loss", "validation.multiple_validation_sets": True},
        why="the metrics of several sets end with the name of the set, and the first evaluation would have no such one",
        fix='Name one, such as checkpoint.best_metric="lm loss SET".',
        passes={"checkpoint.best_metric": "lm loss code"},
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
)

_BOUNDS: tuple[tuple[int, str, int, float, int, str, str], ...] = (
    (16, "save_retain_interval", 1, inf, 1000,
     "it is the interval in steps of the checkpoints that are never deleted", "1 or more, or to null"),
    (17, "async_hang_seconds", 1, inf, 600,
     "a background process that writes nothing for this time is killed, and a disk may pause briefly",
     "1 or more, such as 600"),
    (18, "async_ckpt_cpu_priority", 0, 19, 10,
     "it is a nice value, and a process can only lower its own priority", "0 to 19"),
    (21, "async_ckpt_io_priority", 0, 3, 3,
     "the classes are 0 to 3", "0 to 3, or to null for the default of the system"),
    (37, "dist_ckpt_workers", 1, MAX_THREADS, 1,
     "each rank that writes starts that many threads", f"1 to {MAX_THREADS}"),
    (38, "ckpt_step", 0, inf, 100,
     "steps are counted from 0", "the step of a checkpoint, or leave it out for the newest"),
    (39, "replication_jump", 1, inf, 8,
     "it is the distance in ranks between two holders of the same copy", "the number of ranks on a node, or to null"),
    (40, "replication_factor", 1, inf, 2,
     "it counts the nodes that hold each copy", "2 or more"),
    (59, "hf_save_every_n_ranks", 1, inf, 8,
     "it is the distance in ranks between two that write", "the number of ranks on a node, or to 1 for all ranks"),
)  # fmt: skip
"""Number of the rule, name, lowest and highest value, example of a valid one, reason, and the value to set."""

_NUMBERS = tuple(
    in_range(
        f"CK{number}",
        f"checkpoint.{name}",
        low,
        high,
        why=why,
        fix=f"Set checkpoint.{name} to {valid}.",
        passes=example,
    )
    for number, name, low, high, example, why, valid in _BOUNDS
)

_OPTIONS: tuple[tuple[int, str, object, object, str], ...] = (
    (19, "dist_ckpt_save_pre_mcore_014", False, True, "writes only the current layout"),
    (
        20,
        "distrib_optim_fully_reshardable_mem_efficient",
        False,
        True,
        "gathers through the process groups of the training",
    ),
    (25, "ckpt_convert_format", None, "torch_dist", "converts nothing"),
    (26, "ckpt_convert_save", None, "converted", "converts nothing"),
    (27, "ckpt_convert_update_legacy_dist_opt_format", False, True, "converts nothing"),
    (28, "save_params_interval", None, 10, "writes no dumps"),
    (29, "save_activations_interval", None, 10, "writes no dumps"),
    (30, "save_tokens_per_expert_interval", None, 10, "writes no dumps"),
    (31, "save_wgrads_interval", None, 10, "writes no dumps"),
    (32, "save_dgrads_interval", None, 10, "writes no dumps"),
    (34, "hf_trust_remote_code", False, True, "runs no code of a template"),
)
"""Number of the rule, name, neutral value, example of another value, and what the package does instead."""

_UNSUPPORTED = tuple(
    unsupported(
        f"CK{number}",
        f"checkpoint.{name}",
        neutral,
        fails=requested,
        why=f"mb-checkpoint {lacks}; ignoring the option would hide that",
        fix=f"Set checkpoint.{name}={shown(neutral)}.",
    )
    for number, name, neutral, requested, lacks in _OPTIONS
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

RULES: tuple[Rule, ...] = (*conditions.RULES, *_CONSISTENCY, *_NUMBERS, *_UNSUPPORTED, *_PATHS)


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
