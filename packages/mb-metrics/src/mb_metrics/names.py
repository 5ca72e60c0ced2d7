"""Names of metrics; each metric has the same name in every sink."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256

LEARNING_RATE = "learning-rate"
BATCH_SIZE = "batch-size"
LOSS_SCALE = "loss-scale"
GRAD_NORM = "grad-norm"
NUM_ZEROS = "num-zeros"
PARAMS_NORM = "params-norm"
MAX_ATTENTION_LOGIT = "max-attention-logit"
WORLD_SIZE = "world-size"
SKIPPED_SAMPLES = "skipped-train-samples"
DECOUPLED_LEARNING_RATE = "decoupled-learning-rate"
CONSUMED_SAMPLES = "samples vs steps"
FAILED_SAVES = "checkpoint-failed-saves"

ITERATION_TIME = "iteration-time"
ENERGY = "iter-energy/gpu"
POWER = "power/gpu"
TFLOPS_PER_DEVICE = "throughput/tflops/device"
THROUGHPUT_WINDOW = "throughput/window_steps"
TFLOPS = "throughput/tflops"
MFU = "throughput/mfu"
TIME_TOTAL = "time/total"
TIME_LEFT = "time/remaining_estimate"
TIME_TOKENS = "time/tokens"
TIME_SAMPLES = "time/samples"
TIME_BATCHES = "time/batches"
GLOBAL_BATCH_SIZE = "throughput/global_batch_size"
MICRO_BATCH_SIZE = "throughput/micro_batch_size"
PEAK_MEMORY = "memory/mem-max-allocated-gigabytes"

LONGEST_MLFLOW_NAME = 250
"""Characters of a name that every store of MLflow accepts."""

BRIDGE_ALIASES: Mapping[str, str] = {
    TFLOPS_PER_DEVICE: "throughput/tflops_per_device",
    "memory/mem-alloc-retries": "memory/mem-alloc-retires",
}
"""Metric name to the name that Megatron-Bridge uses for the same value in one of its back-ends."""

ACCEPTANCE_RATE = "_acceptance_rate"
VALIDATION = " validation"
PERPLEXITY = " validation ppl"
VERSUS_SAMPLES = " vs samples"

NOT_LOSSES = frozenset(
    {
        LEARNING_RATE,
        BATCH_SIZE,
        LOSS_SCALE,
        GRAD_NORM,
        NUM_ZEROS,
        PARAMS_NORM,
        MAX_ATTENTION_LOGIT,
        WORLD_SIZE,
        SKIPPED_SAMPLES,
        DECOUPLED_LEARNING_RATE,
        CONSUMED_SAMPLES,
        ITERATION_TIME,
        FAILED_SAVES,
    }
)
"""Names without "/" that are neither losses nor averaged."""


ADDED_BY_METRICS = frozenset(
    {
        BATCH_SIZE,
        WORLD_SIZE,
        ITERATION_TIME,
        *(TFLOPS, TFLOPS_PER_DEVICE, MFU, GLOBAL_BATCH_SIZE, MICRO_BATCH_SIZE, *BRIDGE_ALIASES.values()),
        THROUGHPUT_WINDOW,
        *(TIME_TOTAL, TIME_LEFT, TIME_TOKENS, TIME_SAMPLES, TIME_BATCHES),
        *(
            f"throughput/{device}{count}_per_sec"
            for device in ("", "device/")
            for count in ("batches", "samples", "tokens")
        ),
    }
)
"""Names of the metrics that `Metrics` adds to the recorded ones."""

_LOSS = r"(?:lm[ _])?loss(?:_step|_epoch)?"
_TRAINING, _VALIDATION = r"(?:train|training)", r"(?:val|valid|validation|eval|dev)"
_TRAINING_LOSS = re.compile(
    rf"(?:{_TRAINING}[/_ -])?{_LOSS}|loss[/_]{_TRAINING}|loss_metrics/global_avg_loss", re.IGNORECASE
)
_VALIDATION_LOSS = re.compile(
    rf"{_VALIDATION}[/_ -]{_LOSS}(?:/dataloader_idx_\d+)?|loss[/_]{_VALIDATION}|validation_metrics/loss",
    re.IGNORECASE,
)
_LEARNING_RATE = re.compile(
    rf"(?:(?:{_TRAINING}|optimizer|optim)[/_])?(?:lr|learning[-_ ]rate)|lr-\w+(?:/pg\d+)?", re.IGNORECASE
)
_GRAD_NORM = re.compile(rf"(?:(?:{_TRAINING}|optimizer|optim)[/_])?grad(?:ient)?[-_ ]norm", re.IGNORECASE)
_LOSS_WORD = re.compile(r"loss|error|objective|perplexity|cross[-_ ]?entropy|nll|elbo", re.IGNORECASE)
_COUNTER = re.compile(r"epochs?|iters?|iterations?|steps?|global_step", re.IGNORECASE)


def is_training_loss(name: str) -> bool:
    """Return True for the names of the main training loss: "loss", "train/loss", "train_loss", "lm loss", ..."""
    return _TRAINING_LOSS.fullmatch(name) is not None


def is_validation_loss(name: str) -> bool:
    """Return True for the names of the main validation loss: "val/loss", "eval_loss", ..."""
    return _VALIDATION_LOSS.fullmatch(name) is not None


def is_learning_rate(name: str) -> bool:
    """Return True for the names of the learning rate: "learning-rate", "lr", "train/lr", "lr-AdamW", ..."""
    return _LEARNING_RATE.fullmatch(name) is not None


def is_grad_norm(name: str) -> bool:
    """Return True for the names of the gradient norm: "grad-norm", "grad_norm", "train/grad_norm", ..."""
    return _GRAD_NORM.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def is_loss(name: str) -> bool:
    """Return True if a metric is a loss: checked for NaN, and plotted as a loss in reports.

    A name without "/" is a loss if it contains "loss", "error" or another usual word. A name with "/" is a loss if it
    is a usual name of the training or validation loss ("train/loss", "eval/loss").
    """
    return is_averaged(name) and ("/" in name or _LOSS_WORD.search(name) is not None)


@lru_cache(maxsize=4096)
def is_averaged(name: str) -> bool:
    """Return True if a console shows the mean of a metric over the log interval, as it does for losses.

    Each name without "/" except `NOT_LOSSES`, counters ("epoch", "step"), the usual names of the learning rate and of
    the gradient norm, and the acceptance rates of multi-token prediction; with "/", the usual names of the loss.
    """
    if "/" in name:
        return is_training_loss(name) or is_validation_loss(name)
    others = name in NOT_LOSSES or name.endswith(ACCEPTANCE_RATE) or _COUNTER.fullmatch(name) is not None
    return not (others or is_learning_rate(name) or is_grad_norm(name))


def find_learning_rate(recorded: Iterable[str]) -> str | None:
    """Return the name of the learning rate among recorded names; None if there is none."""
    return _find(recorded, LEARNING_RATE, is_learning_rate)


def find_grad_norm(recorded: Iterable[str]) -> str | None:
    """Return the name of the gradient norm among recorded names; None if there is none."""
    return _find(recorded, GRAD_NORM, is_grad_norm)


def find_validation(loss: str, recorded: Iterable[str]) -> str | None:
    """Return the name of the validation loss that belongs to a training loss; None if there is none.

    It is the same name in an evaluation, or any usual name of the main validation loss if `loss` is the main one.
    """
    return _find(recorded, loss, is_validation_loss if is_training_loss(loss) else lambda name: False)


def _find(recorded: Iterable[str], first: str, accepts: Callable[[str], bool]) -> str | None:
    names = list(recorded)
    return first if first in names else next((name for name in names if accepts(name)), None)


def has_samples_axis(name: str) -> bool:
    """Return True if sinks that support several axes also plot the metric against consumed samples."""
    without_twin = (
        CONSUMED_SAMPLES,
        ITERATION_TIME,
        SKIPPED_SAMPLES,
        DECOUPLED_LEARNING_RATE,
        FAILED_SAVES,
    )
    return "/" not in name and name not in without_twin


def different_mlflow_names(recorded: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the MLflow name of each metric; a name that another metric has already gets the hash of its own.

    Args:
        recorded: Names of metrics.
        known: Names of metrics that have an MLflow name, to that name.
    """
    names = dict(known)
    metric_of = {written: name for name, written in known.items()}
    for name in recorded:
        if name not in names:
            written = mlflow_name(name)[:LONGEST_MLFLOW_NAME]
            if written in metric_of:
                digest = sha256(name.encode()).hexdigest()[:8]
                written = f"{written[: LONGEST_MLFLOW_NAME - 9]}_{digest}"
            names[name] = metric_of[written] = written
    return names


def mlflow_name(name: str) -> str:
    """Return a valid MLflow name for a metric: at most one "/", and word characters, ".", "-", " " and ":" only.

    "@" becomes "_at_", consecutive "/" become one "/", a second "/" and any other character become "_": "a@b/c//d"
    becomes "a_at_b/c_d". MLflow treats a name as a relative path, so a leading or trailing "/" is removed, and the
    dots of "." and ".." and of a leading ".." become "_". If nothing remains, as for "//", the result is "_".
    """
    group, slash, rest = re.sub("/+", "/", name.replace("@", "_at_")).strip("/").partition("/")
    written = re.sub(r"[^\w/.\- :]", "_", f"{group}{slash}{rest.replace('/', '_')}")
    return re.sub(r"^\.\.|(?<![^/])\.\.?(?![^/])", lambda dots: "_" * len(dots[0]), written) or "_"


MEMORY_KEYS: dict[str, str] = {
    "allocated_bytes.all.current": "mem-allocated-bytes",
    "active_bytes.all.current": "mem-active-bytes",
    "inactive_split_bytes.all.current": "mem-inactive-bytes",
    "reserved_bytes.all.current": "mem-reserved-bytes",
    "allocated_bytes.all.peak": "mem-max-allocated-bytes",
    "active_bytes.all.peak": "mem-max-active-bytes",
    "inactive_split_bytes.all.peak": "mem-max-inactive-bytes",
    "reserved_bytes.all.peak": "mem-max-reserved-bytes",
    "num_alloc_retries": "mem-alloc-retries",
    "allocation.all.current": "mem-allocated-count",
}
"""Reported entries of torch.cuda.memory_stats() and their names; "bytes" in a name becomes "gigabytes"."""
DEVICE_MEMORY_USED = "mem-device-used-gigabytes"
"""Name of the memory that all processes use, according to the driver."""


def memory_name(key: str, name: str) -> str:
    """Return the name under which an entry of torch.cuda.memory_stats() is reported; bytes are gigabytes."""
    return name.replace("bytes", "gigabytes") if "bytes" in key else name
