"""What the metrics are called: one name for each, the same in every sink."""

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
"""Right name to the name that Megatron-Bridge gave the same number in one of its back-ends."""

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
"""The names above that stand for themselves; they have no "/" and are no losses."""


def is_loss(name: str) -> bool:
    """Tell whether a metric is treated as a loss: averaged, shown on the console, watched for NaN.

    Every name is, except the ones of this file, grouped ones ("memory/...", "throughput/...") and the acceptance rates
    of multi-token prediction.
    """
    return "/" not in name and name not in NOT_LOSSES and not name.endswith(ACCEPTANCE_RATE)


def has_samples_axis(name: str) -> bool:
    """Tell whether sinks with a choice of axis also plot the metric against consumed samples."""
    without_twin = (
        CONSUMED_SAMPLES,
        ITERATION_TIME,
        SKIPPED_SAMPLES,
        DECOUPLED_LEARNING_RATE,
        FAILED_SAVES,
    )
    return "/" not in name and name not in without_twin


def mlflow_name(name: str) -> str:
    """Return a metric's name as MLflow takes it: at most one "/", and word characters, ".", "-", " " and ":" only.

    "@" becomes "_at_", a run of "/" one "/", a further "/" and any other character "_": "a@b/c//d" becomes
    "a_at_b/c_d". MLflow reads a name as a path below its folder, so a "/" at the start or the end is left out, and the
    dots of "." and ".." and of a leading ".." become "_". A name of which nothing remains, such as "//", becomes "_".
    """
    group, slash, rest = re.sub("/+", "/", name.replace("@", "_at_")).strip("/").partition("/")
    written = re.sub(r"[^\w/.\- :]", "_", f"{group}{slash}{rest.replace('/', '_')}")
    return re.sub(r"^\.\.|(?<![^/])\.\.?(?![^/])", lambda dots: "_" * len(dots[0]), written) or "_"
