"""Names of metrics; each metric has the same name in every sink."""

import re
from collections.abc import Mapping

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
"""Names without "/" that are not losses."""


def is_loss(name: str) -> bool:
    """Return True if a metric is treated as a loss: averaged, shown on the console, checked for NaN.

    Every metric is a loss except `NOT_LOSSES`, grouped metrics ("memory/...", "throughput/...") and the acceptance
    rates of multi-token prediction.
    """
    return "/" not in name and name not in NOT_LOSSES and not name.endswith(ACCEPTANCE_RATE)


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


def mlflow_name(name: str) -> str:
    """Return a valid MLflow name for a metric: at most one "/", and word characters, ".", "-", " " and ":" only.

    "@" becomes "_at_", consecutive "/" become one "/", a second "/" and any other character become "_": "a@b/c//d"
    becomes "a_at_b/c_d". MLflow treats a name as a relative path, so a leading or trailing "/" is removed, and the
    dots of "." and ".." and of a leading ".." become "_". If nothing remains, as for "//", the result is "_".
    """
    group, slash, rest = re.sub("/+", "/", name.replace("@", "_at_")).strip("/").partition("/")
    written = re.sub(r"[^\w/.\- :]", "_", f"{group}{slash}{rest.replace('/', '_')}")
    return re.sub(r"^\.\.|(?<![^/])\.\.?(?![^/])", lambda dots: "_" * len(dots[0]), written) or "_"
