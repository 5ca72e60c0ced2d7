"""Rules for a `LoggerConfig`: pure functions on values, with a reason, a fix, a failing and a passing example."""

import math
import re
from collections.abc import Callable, Mapping

from mb_metrics.paths import path_rule
from mb_metrics.profiling_rules import PROFILING_RULES
from mb_metrics.rule import Rule as Rule

_MLFLOW = ("experiment", "run_name", "tracking_uri", "tags", "description")
_COMET = ("project", "experiment_name", "workspace", "api_key", "tags")
_WANDB = ("project", "exp_name", "save_dir", "entity")


def _run_needs_name(experiment: str | None, name: str | None) -> str | None:
    return f"{experiment!r} is set and the run has no name ({name!r})" if experiment and not name else None


def _needs_package(package: str) -> Callable[..., str | None]:
    def test(*values: object) -> str | None:
        *settings, installed = values
        return f"{package} is required and not installed" if any(settings) and not installed else None

    return test


def _named_run(id: str, fields: tuple[str, str], backend: str) -> Rule:
    return Rule(
        id=id,
        fields=fields,
        test=_run_needs_name,
        why=f"{backend} would generate a name, and a resumed run could not be distinguished from a new one",
        fix=f"Set {fields[1]}.",
        fails={fields[0]: "gpt", fields[1]: ""},
        passes={fields[0]: "gpt", fields[1]: "run 1"},
    )


def _installed(id: str, fields: tuple[str, ...], package: str) -> Rule:
    fact = f"facts.{package}_installed"
    settings = dict.fromkeys(fields) | {fields[0]: "x"}
    return Rule(
        id=id,
        fields=(*fields, fact),
        test=_needs_package(package),
        why=f"the package {package} writes the metrics",
        fix=f"Install {package}, or unset {fields[0]} and the related fields.",
        fails={**settings, fact: False},
        passes={**settings, fact: True},
    )


def _belongs_to(id: str, main: str, others: tuple[str, ...], backend: str) -> Rule:
    """Return a rule that rejects settings of a disabled back-end."""
    paths = (f"logger.{main}", *(f"logger.{name}" for name in others))

    def test(enabled: object, *settings: object) -> str | None:
        idle = [
            f"{name}={value!r}" for name, value in zip(others, settings, strict=True) if value and not enabled
        ]
        return f"{', '.join(idle)} without {main}" if idle else None

    return Rule(
        id=id,
        fields=paths,
        test=test,
        why=f"{backend} is disabled without {main}, and its settings would be silently ignored",
        fix=f"Set logger.{main}, or unset the others.",
        fails=dict.fromkeys(paths) | {paths[1]: "x"},
        passes=dict.fromkeys(paths) | {paths[0]: "x", paths[1]: "x"},
    )


def _positive(id: str, field: str, why: str) -> Rule:
    path = f"logger.{field}"

    def test(value: int) -> str | None:
        return None if value >= 1 else f"{field}={value} is not positive"

    return Rule(
        id=id,
        fields=(path,),
        test=test,
        why=why,
        fix="Set it to 1 or more.",
        fails={path: 0},
        passes={path: 1},
    )


def _one_of(id: str, field: str, choices: tuple[object, ...], why: str) -> Rule:
    path = f"logger.{field}"

    def test(value: object) -> str | None:
        return None if value in choices else f"{field}={value!r} is none of {choices}"

    return Rule(
        id=id,
        fields=(path,),
        test=test,
        why=why,
        fix=f"Choose one of {choices}.",
        fails={path: "x"},
        passes={path: choices[0]},
    )


def _inert(id: str, field: str, default: object, requested: object, fix: str) -> Rule:
    path = f"logger.{field}"

    def test(value: object) -> str | None:
        return None if value == default else f"{field}={value!r} has no effect in this version"

    return Rule(
        id=id,
        fields=(path,),
        test=test,
        why="this option is not implemented yet; ignoring it silently would hide the problem until the run is in"
        " progress",
        fix=fix,
        fails={path: requested},
        passes={path: default},
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


def _timers(level: int) -> str | None:
    return f"timing_log_level={level} requires timers of parts of a step" if level > 0 else None


def _rarely_coincide(points: int, interval: int) -> str | None:
    if points < 1 or interval < 1 or points % interval == 0 or interval % points == 0:
        return None
    both = math.lcm(points, interval)
    return f"tensorboard_log_interval={points} and log_interval={interval} coincide only every {both} steps"


def _empty_name(project: str | None, name: str | None) -> str | None:
    return f"wandb_exp_name is empty for project {project!r}" if project and name == "" else None


def _password_in_address(address: str | None) -> str | None:
    if address is None or not re.search(r"//[^/@\s]*:[^/@\s]+@", address):
        return None
    return f"the address contains a password ({re.sub(r'//[^/@]+@', '//***@', address)})"


def _memory_interval(every: int | None, log_interval: int) -> str | None:
    if every is None or (every > 0 and log_interval > 0 and every % log_interval == 0):
        return None
    return f"log_memory_interval={every} is not a multiple of log_interval={log_interval}"


def _idle_memory_settings(
    keys: Mapping[str, str] | None, every: int | None, allocator: bool, device: bool
) -> str | None:
    if keys and not allocator:
        return f"memory_keys={keys} without log_memory_to_tensorboard"
    if every is not None and not (allocator or device):
        return f"log_memory_interval={every} without log_memory_to_tensorboard or log_device_memory_used"
    return None


_MEMORY = (
    "logger.memory_keys",
    "logger.log_memory_interval",
    "logger.log_memory_to_tensorboard",
    "logger.log_device_memory_used",
)

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

_PATHS = tuple(Rule(**path_rule(number, path)) for number, path in enumerate(PATH_FIELDS, start=41))

RULES: tuple[Rule, ...] = (
    *_PATHS,
    _named_run("V052", ("logger.mlflow_experiment", "logger.mlflow_run_name"), "MLflow"),
    _installed("V053", ("logger.mlflow_experiment",), "mlflow"),
    _named_run("V054", ("logger.comet_project", "logger.comet_experiment_name"), "Comet"),
    _installed("V055", ("logger.comet_project",), "comet_ml"),
    _installed("L01", ("logger.tensorboard_dir",), "tensorboard"),
    _installed("L02", ("logger.wandb_project",), "wandb"),
    _positive(
        "L05", "log_interval", "it is the number of steps between lines, and the step is divided by it"
    ),
    _positive("L06", "throughput_window_size", "it is the number of steps over which throughput is averaged"),
    _positive(
        "L07",
        "tensorboard_log_interval",
        "it is the number of steps between points, and the step is divided by it",
    ),
    _positive("L08", "tensorboard_queue_size", "an empty queue would make every step wait for the disk"),
    _one_of(
        "L09",
        "runtime_time_unit",
        ("seconds", "minutes", "hours", "days"),
        "times are reported in one of these units",
    ),
    Rule(
        id="L10",
        fields=("logger.timing_log_level",),
        test=_timers,
        why="such a timer synchronizes the host with the device at both ends of each part, which slows down the step;"
        " the trainer measures complete steps",
        fix="Set it to 0, and measure parts of a step with the profiler.",
        fails={"logger.timing_log_level": 1},
        passes={"logger.timing_log_level": -1},
    ),
    *(
        _inert(f"L{number}", field, default, requested, fix)
        for number, field, default, requested, fix in _INERT
    ),
    Rule(
        id="L30",
        fields=("logger.wandb_project", "logger.wandb_exp_name"),
        test=_empty_name,
        why="an empty name is usually a mistake, such as an unset variable",
        fix="Set logger.wandb_exp_name, or None to let Weights & Biases generate a name.",
        fails={"logger.wandb_project": "gpt", "logger.wandb_exp_name": ""},
        passes={"logger.wandb_project": "gpt", "logger.wandb_exp_name": None},
    ),
    _belongs_to("L31", "wandb_project", tuple(f"wandb_{name}" for name in _WANDB[1:]), "Weights & Biases"),
    _belongs_to("L32", "mlflow_experiment", tuple(f"mlflow_{name}" for name in _MLFLOW[1:]), "MLflow"),
    _belongs_to("L33", "comet_project", tuple(f"comet_{name}" for name in _COMET[1:]), "Comet"),
    Rule(
        id="L35",
        fields=("logger.mlflow_tracking_uri",),
        test=_password_in_address,
        why="a configuration is printed, and stored in the run folder and in checkpoints",
        fix="Remove user and password, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.",
        fails={"logger.mlflow_tracking_uri": "https://me:secret@mlflow.example"},
        passes={"logger.mlflow_tracking_uri": "https://mlflow.example"},
    ),
    Rule(
        id="L36",
        fields=("logger.log_memory_interval", "logger.log_interval"),
        test=_memory_interval,
        why="memory is measured at the end of a log interval",
        fix="Set it to a multiple of logger.log_interval, or to None for every log interval.",
        fails={"logger.log_memory_interval": 15, "logger.log_interval": 10},
        passes={"logger.log_memory_interval": 20, "logger.log_interval": 10},
    ),
    Rule(
        id="L38",
        fields=("logger.tensorboard_log_interval", "logger.log_interval"),
        test=_rarely_coincide,
        why="throughput, memory, times and norms are measured at the end of a log interval and written only where both"
        " intervals end",
        fix="Make one of them a multiple of the other.",
        severity="warning",
        fails={"logger.tensorboard_log_interval": 3, "logger.log_interval": 10},
        passes={"logger.tensorboard_log_interval": 5, "logger.log_interval": 10},
    ),
    Rule(
        id="L37",
        fields=_MEMORY,
        test=_idle_memory_settings,
        why="they configure memory metrics, which are disabled",
        fix="Set logger.log_memory_to_tensorboard=true, or unset them.",
        fails=dict(zip(_MEMORY, ({"num_ooms": "ooms"}, None, False, False), strict=True)),
        passes=dict(zip(_MEMORY, ({"num_ooms": "ooms"}, 10, True, False), strict=True)),
    ),
    *PROFILING_RULES,
)
