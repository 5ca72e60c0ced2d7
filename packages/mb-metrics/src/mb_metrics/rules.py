"""Rules for a `LoggerConfig`: pure functions on values, with a reason, a fix, a failing and a passing example."""

import math
import re
from functools import partial

from mb_metrics.profiling.rules import PROFILING_RULES
from mb_schema.paths import path_rule
from mb_schema.rule_kinds import (
    in_range,
    needs_package,
    no_effect,
    one_of,
    other_than,
    requires,
    section_rule,
    unsupported,
    within,
)
from mb_schema.rules import Rule, rules_in

logger_rule = partial(section_rule, "logger")


def _named_run(id: str, experiment: str, name: str, backend: str) -> Rule:
    return requires(
        id,
        {f"logger.{experiment}": True},
        {f"logger.{name}": True},
        why=f"{backend} would generate a name, and a resumed run could not be distinguished from a new one",
        fix=f"Set logger.{name}.",
        fails={f"logger.{experiment}": "gpt", f"logger.{name}": ""},
        passes={f"logger.{name}": "run 1"},
    )


def _installed(id: str, field: str, package: str) -> Rule:
    return needs_package(
        id,
        [f"logger.{field}"],
        package,
        fact=f"{package}_installed",
        why=f"the package {package} writes the metrics",
        fix=f"Install {package}, or unset logger.{field} and the related fields.",
        example="x",
    )


def _belongs_to(id: str, main: str, others: str, backend: str) -> Rule:
    """Return a rule that rejects settings of a disabled back-end."""
    paths = within("logger", others)
    return no_effect(
        id,
        f"logger.{main}",
        dict.fromkeys(paths),
        why=f"{backend} is disabled without {main}, and its settings would be silently ignored",
        fix=f"Set logger.{main}, or unset the others.",
        fails={paths[0]: "x"},
        passes={f"logger.{main}": "x"},
    )


_LEAVE = "Leave it at its default."

_INERT: tuple[tuple[int, str, object, object, str], ...] = (
    (19, "log_num_zeros_in_grad", False, True, "Set optimizer.log_num_zeros_in_grad."),
    (20, "log_max_attention_logit", False, True, "Set model.log_max_attention_logit."),
    (21, "barrier_with_L1_time", True, False, "Set optimizer.barrier_with_L1_time."),
    (22, "timing_log_option", "minmax", "all", _LEAVE),
    (23, "moe_routing_trace_path", None, "traces", _LEAVE),
    (24, "moe_routing_trace_max_training_iters", None, 10, _LEAVE),
    (25, "moe_routing_trace_capture_logits", False, True, _LEAVE),
    (26, "moe_routing_trace_capture_hidden_states", False, True, _LEAVE),
    (27, "moe_routing_trace_dump_weights", False, True, _LEAVE),
)


@logger_rule(
    "L10",
    why="such a timer synchronizes the host with the device at both ends of each part, which slows down the step;"
    " the trainer measures complete steps",
    fix="Set it to 0, and measure parts of a step with the profiler.",
    fails={"timing_log_level": 1},
    passes={"timing_log_level": -1},
)
def _timers_within_step(timing_log_level):
    if timing_log_level > 0:
        return f"requires timers of parts of a step (timing_log_level={timing_log_level})"
    return None


@logger_rule(
    "L50",
    why="no such step is made",
    fix="Give numbers of steps from 1.",
    fails={"tensor_norms_steps": [0, 5]},
    passes={"tensor_norms_steps": [4, 5]},
)
def _norms_before_first_step(tensor_norms_steps):
    early = [step for step in tensor_norms_steps or () if step < 1]
    return f"contains {early[0]}, and steps are numbered from 1" if early else None


@logger_rule(
    "L38",
    why="throughput, memory, times and norms are measured at the end of a log interval and written only where"
    " both intervals end",
    fix="Make one of them a multiple of the other.",
    fails={"tensorboard_log_interval": 3, "log_interval": 10},
    passes={"tensorboard_log_interval": 5},
    severity="warning",
)
def _intervals_rarely_coincide(tensorboard_log_interval, log_interval):
    if (
        tensorboard_log_interval < 1
        or log_interval < 1
        or tensorboard_log_interval % log_interval == 0
        or log_interval % tensorboard_log_interval == 0
    ):
        return None
    both = math.lcm(tensorboard_log_interval, log_interval)
    values = f"tensorboard_log_interval={tensorboard_log_interval}, log_interval={log_interval}"
    return f"coincides with log_interval only every {both} steps ({values})"


@logger_rule(
    "L35",
    why="a configuration is printed, and stored in the run folder and in checkpoints",
    fix="Remove user and password, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.",
    fails={"mlflow_tracking_uri": "https://me:secret@mlflow.example"},
    passes={"mlflow_tracking_uri": "https://mlflow.example"},
)
def _password_in_address(mlflow_tracking_uri):
    if mlflow_tracking_uri is None or not re.search(r"//[^/@\s]*:[^/@\s]+@", mlflow_tracking_uri):
        return None
    return f"contains a password ({re.sub(r'//[^/@]+@', '//***@', mlflow_tracking_uri)})"


@logger_rule(
    "L36",
    why="memory is measured at the end of a log interval",
    fix="Set it to a multiple of logger.log_interval, or to None for every log interval.",
    fails={"log_memory_interval": 15, "log_interval": 10},
    passes={"log_memory_interval": 20},
)
def _memory_between_log_intervals(log_memory_interval, log_interval):
    if log_memory_interval is None or (
        log_memory_interval > 0 and log_interval > 0 and log_memory_interval % log_interval == 0
    ):
        return None
    return (
        f"must be a multiple of log_interval (log_memory_interval={log_memory_interval}, "
        f"log_interval={log_interval})"
    )


@logger_rule(
    "L37",
    why="they configure memory metrics, which are disabled",
    fix="Set logger.log_memory_to_tensorboard=true, or unset them.",
    fails={"memory_keys": {"num_ooms": "ooms"}},
    passes={"log_memory_interval": 10, "log_memory_to_tensorboard": True},
)
def _idle_memory_settings(
    memory_keys, log_memory_interval, log_memory_to_tensorboard, log_device_memory_used
):
    if memory_keys and not log_memory_to_tensorboard:
        return f"requires log_memory_to_tensorboard (memory_keys={memory_keys})"
    if log_memory_interval is not None and not (log_memory_to_tensorboard or log_device_memory_used):
        return f"log_memory_interval={log_memory_interval} requires log_memory_to_tensorboard or log_device_memory_used"
    return None


PATH_FIELDS = (
    "logger.save_config_filepath",
    "logger.tensorboard_dir",
    "logger.wandb_save_dir",
    "logger.moe_routing_trace_path",
    "profiling.memory_snapshot_path",
    "tensor_inspect.features",
    "tensor_inspect.feature_dirs",
    "tensor_inspect.log_dir",
)
"""Fields that contain paths of files or folders."""

_PATHS = tuple(path_rule(number, path) for number, path in enumerate(PATH_FIELDS, start=41))


_NORMS_OF_SHARDS = (
    "it keeps entire rows of a tensor on some of the ranks and none of it on others, which then have no norm "
    "to add"
)


@logger_rule(
    "T36",
    why=_NORMS_OF_SHARDS,
    fix="Set logger.log_l2_norm_grad_to_tensorboard=false; grad-norm, of all gradients together, is always logged.",
    fails={"log_l2_norm_grad_to_tensorboard": True, "ddp__use_megatron_fsdp": True},
    passes={"log_l2_norm_grad_to_tensorboard": False},
)
def _gradient_norms_of_shards(
    log_l2_norm_grad_to_tensorboard, ddp__use_megatron_fsdp, dist__use_megatron_fsdp
):
    if log_l2_norm_grad_to_tensorboard and (ddp__use_megatron_fsdp or dist__use_megatron_fsdp):
        return "is true under Megatron-FSDP"
    return None


@logger_rule(
    "T36a",
    why=_NORMS_OF_SHARDS,
    fix="Set logger.tensor_norms_steps=null.",
    fails={"tensor_norms_steps": [5], "ddp__use_megatron_fsdp": True},
    passes={"tensor_norms_steps": None},
)
def _tensor_norms_of_shards(tensor_norms_steps, ddp__use_megatron_fsdp, dist__use_megatron_fsdp):
    if tensor_norms_steps and (ddp__use_megatron_fsdp or dist__use_megatron_fsdp):
        return f"is {tensor_norms_steps} under Megatron-FSDP"
    return None


@logger_rule(
    "T36b",
    why="a captured graph calls no hooks, so that the outputs of its modules would be missing",
    fix="Set model.cuda_graph_impl=none, or logger.tensor_norms_steps=null.",
    fails={"tensor_norms_steps": [5], "model__cuda_graph_impl": "local"},
    passes={"model__cuda_graph_impl": "none"},
)
def _tensor_norms_in_graphs(tensor_norms_steps, model__cuda_graph_impl):
    if tensor_norms_steps and model__cuda_graph_impl not in (None, "none"):
        return f"requires cuda_graph_impl=none ({model__cuda_graph_impl})"
    return None


RULES: tuple[Rule, ...] = (
    *_PATHS,
    _named_run("V052", "mlflow_experiment", "mlflow_run_name", "MLflow"),
    _installed("V053", "mlflow_experiment", "mlflow"),
    _named_run("V054", "comet_project", "comet_experiment_name", "Comet"),
    _installed("V055", "comet_project", "comet_ml"),
    _installed("L01", "tensorboard_dir", "tensorboard"),
    _installed("L02", "wandb_project", "wandb"),
    *(
        in_range(id, f"logger.{field}", 1, why=why, fix="Set it to 1 or more.")
        for id, field, why in (
            ("L05", "log_interval", "it is the number of steps between lines, and the step is divided by it"),
            ("L06", "throughput_window_size", "it is the number of steps over which throughput is averaged"),
            (
                "L07",
                "tensorboard_log_interval",
                "it is the number of steps between points, and the step is divided by it",
            ),
            ("L08", "tensorboard_queue_size", "without a queue no step would be written"),
        )
    ),
    one_of(
        "L09",
        "logger.runtime_time_unit",
        ("seconds", "minutes", "hours", "days"),
        why="times are reported in one of these units",
        fix="Choose one of ('seconds', 'minutes', 'hours', 'days').",
        fails="x",
    ),
    one_of(
        "L39",
        "logger.console",
        ("auto", "short", "megatron"),
        why="the console has lines for people, or those of Megatron for programs",
        fix="Choose one of ('auto', 'short', 'megatron').",
        fails="json",
    ),
    requires(
        "L40",
        {"logger.console": other_than("auto", None)},
        {"logger.skip_train_metrics_log": False},
        why="skip_train_metrics_log disables the lines that it selects",
        fix="Set logger.skip_train_metrics_log=false, or unset logger.console.",
        fails={"logger.console": "short"},
    ),
    *rules_in(globals()),
    *(
        unsupported(f"L{number}", f"logger.{field}", neutral, fails=requested, fix=fix)
        for number, field, neutral, requested, fix in _INERT
    ),
    requires(
        "L30",
        {"logger.wandb_project": True},
        {"logger.wandb_exp_name": other_than("")},
        why="an empty name is usually a mistake, such as an unset variable",
        fix="Set logger.wandb_exp_name, or None to let Weights & Biases generate a name.",
        fails={"logger.wandb_project": "gpt", "logger.wandb_exp_name": ""},
        passes={"logger.wandb_exp_name": None},
    ),
    _belongs_to("L31", "wandb_project", "wandb_exp_name wandb_save_dir wandb_entity", "Weights & Biases"),
    _belongs_to(
        "L32",
        "mlflow_experiment",
        "mlflow_run_name mlflow_tracking_uri mlflow_tags mlflow_description",
        "MLflow",
    ),
    _belongs_to(
        "L33",
        "comet_project",
        "comet_experiment_name comet_workspace comet_api_key comet_tags",
        "Comet",
    ),
    *PROFILING_RULES,
)
