"""What a `LoggerConfig` must fulfil: pure functions on values, with reason, remedy and an example of each side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold.

    A rule with a `facts.` field is about the machine; it applies where that fact is known.
    """

    id: str
    """V and a number where Megatron trainers have the same check, else L and a number."""
    fields: tuple[str, ...]
    """Paths ("section.field") of the values that the test gets, in this order."""
    test: Callable[..., str | None]
    """Returns None, or what is wrong, with the values."""
    why: str
    """The reason."""
    fix: str
    """What to do."""
    severity: Literal["error", "warning"] = "error"
    """Whether the run is refused."""
    fails: Mapping[str, object]
    """An example, path to value, that the rule refuses."""
    passes: Mapping[str, object]
    """An example that it accepts."""


_MLFLOW = ("experiment", "run_name", "tracking_uri", "tags", "description")
_COMET = ("project", "experiment_name", "workspace", "api_key", "tags")
_WANDB = ("project", "exp_name", "save_dir", "entity")


def _paths(backend: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"logger.{backend}_{name}" for name in names)


def _run_needs_name(experiment: str | None, name: str | None) -> str | None:
    return f"{experiment!r} is set and its run has no name ({name!r})" if experiment and not name else None


def _needs_package(package: str) -> Callable[..., str | None]:
    def test(*values: object) -> str | None:
        *wishes, installed = values
        return f"{package} is asked for and not installed" if any(wishes) and not installed else None

    return test


def _not_available(backend: str) -> Callable[..., str | None]:
    def test(*wishes: object) -> str | None:
        return f"{backend} is asked for and not available in this version" if any(wishes) else None

    return test


def _named_run(id: str, fields: tuple[str, str], backend: str) -> Rule:
    return Rule(
        id=id,
        fields=fields,
        test=_run_needs_name,
        why=f"{backend} would make up a name, and a resumed run could not be told from a new one",
        fix=f"Set {fields[1]}.",
        fails={fields[0]: "gpt", fields[1]: ""},
        passes={fields[0]: "gpt", fields[1]: "run 1"},
    )


def _installed(id: str, fields: tuple[str, ...], package: str) -> Rule:
    fact = f"facts.{package}_installed"
    wish = dict.fromkeys(fields) | {fields[0]: "x"}
    return Rule(
        id=id,
        fields=(*fields, fact),
        test=_needs_package(package),
        why=f"the metrics are written by the package {package}",
        fix=f"Install {package}, or unset {fields[0]} and its like.",
        fails={**wish, fact: False},
        passes={**wish, fact: True},
    )


def _backend(id: str, fields: tuple[str, ...], backend: str) -> Rule:
    return Rule(
        id=id,
        fields=fields,
        test=_not_available(backend),
        why="this version writes to the console, JSONL and TensorBoard; nothing would reach it",
        fix=f"Leave {fields[0]} and its like unset; metrics.jsonl holds every metric of every step.",
        fails=dict.fromkeys(fields) | {fields[0]: "x"},
        passes=dict.fromkeys(fields),
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


def _inert(id: str, field: str, default: object, asked: object, fix: str) -> Rule:
    path = f"logger.{field}"

    def test(value: object) -> str | None:
        return None if value == default else f"{field}={value!r} has no effect in this version"

    return Rule(
        id=id,
        fields=(path,),
        test=test,
        why="nothing acts on it, and a wish that is passed over in silence is missed when it is too late",
        fix=fix,
        fails={path: asked},
        passes={path: default},
    )


_LEAVE = "Leave it at its default."

_INERT: tuple[tuple[str, object, object, str], ...] = (
    ("log_memory_to_tensorboard", False, True, _LEAVE),
    ("memory_keys", None, {"num_ooms": "ooms"}, _LEAVE),
    ("log_memory_interval", None, 10, _LEAVE),
    ("log_device_memory_used", False, True, _LEAVE),
    ("log_l2_norm_grad_to_tensorboard", False, True, f"{_LEAVE} The norm of the whole gradient is logged."),
    (
        "log_runtime_to_tensorboard",
        False,
        True,
        f"{_LEAVE} mb_metrics.report_runtime gives the same numbers.",
    ),
    ("log_params_norm", False, True, f"{_LEAVE} A norm of your own can be recorded as params-norm."),
    ("log_energy", False, True, _LEAVE),
    ("log_num_zeros_in_grad", False, True, "Set optimizer.log_num_zeros_in_grad."),
    ("log_max_attention_logit", False, True, "Set model.log_max_attention_logit."),
    ("barrier_with_L1_time", True, False, "Set optimizer.barrier_with_L1_time."),
    ("timing_log_option", "minmax", "all", _LEAVE),
    ("moe_routing_trace_path", None, "traces", _LEAVE),
    ("moe_routing_trace_max_training_iters", None, 10, _LEAVE),
    ("moe_routing_trace_capture_logits", False, True, _LEAVE),
    ("moe_routing_trace_capture_hidden_states", False, True, _LEAVE),
    ("moe_routing_trace_dump_weights", False, True, _LEAVE),
)


def _timers(level: int) -> str | None:
    return f"timing_log_level={level} asks for timers of parts of a step" if level > 0 else None


RULES: tuple[Rule, ...] = (
    _named_run("V052", ("logger.mlflow_experiment", "logger.mlflow_run_name"), "MLflow"),
    _installed("V053", _paths("mlflow", _MLFLOW), "mlflow"),
    _named_run("V054", ("logger.comet_project", "logger.comet_experiment_name"), "Comet"),
    _installed("V055", _paths("comet", _COMET), "comet_ml"),
    _installed("L01", ("logger.tensorboard_dir",), "tensorboard"),
    _backend("L02", _paths("wandb", _WANDB), "Weights & Biases"),
    _backend("L03", _paths("mlflow", _MLFLOW), "MLflow"),
    _backend("L04", _paths("comet", _COMET), "Comet"),
    _positive("L05", "log_interval", "it divides the step, and counts steps between lines"),
    _positive("L06", "throughput_window_size", "throughput is averaged over that many steps"),
    _positive("L07", "tensorboard_log_interval", "it divides the step, and counts steps between points"),
    _positive(
        "L08", "tensorboard_queue_size", "a queue without places would make every step wait for the disk"
    ),
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
        why="this version times the whole step only; nothing would be logged",
        fix="Set it to 0.",
        fails={"logger.timing_log_level": 1},
        passes={"logger.timing_log_level": -1},
    ),
    *(
        _inert(f"L{number}", field, default, asked, fix)
        for number, (field, default, asked, fix) in enumerate(_INERT, start=11)
    ),
)
