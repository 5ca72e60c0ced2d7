"""Protocols of the settings that the loop reads, and the batches that they determine."""

import signal
from collections.abc import Sequence
from typing import Literal, Protocol

from mb_loop.state import TrainState
from mb_loop.step.microbatches import BatchPlan, BatchSizeError, StepBatch, step_batch


class TrainSettings(Protocol):
    """Fields that the loop reads from section `train`."""

    @property
    def train_iters(self) -> int | None:
        """Number of training steps."""

    @property
    def micro_batch_size(self) -> int | None:
        """Sequences per microbatch and rank."""

    @property
    def global_batch_size(self) -> int | None:
        """Sequences per step over all ranks."""

    @property
    def rampup_batch_size(self) -> Sequence[int] | None:
        """Batch size ramp-up: [first batch size, increment, samples]."""

    @property
    def step_batch_size_schedule(self) -> str | None:
        """Global batch sizes by consumed samples or tokens, such as "0:768 250B:1536"."""

    @property
    def decrease_batch_size_if_needed(self) -> bool:
        """Round the global batch size down instead of raising an error."""

    @property
    def iterations_to_skip(self) -> Sequence[int]:
        """One-based steps whose data is consumed without training."""

    @property
    def exit_interval(self) -> int | None:
        """The run ends at multiples of this step."""

    @property
    def exit_duration_in_mins(self) -> float | None:
        """The run ends after this many minutes."""

    @property
    def exit_signal_handler(self) -> bool:
        """Save and end the run after the step in which any rank receives `exit_signal`."""

    @property
    def exit_signal(self) -> signal.Signals:
        """Signal that requests a stop."""

    @property
    def manual_gc(self) -> bool:
        """Collect garbage on a schedule instead of automatically."""

    @property
    def manual_gc_interval(self) -> int:
        """Steps between collections; 0: only around evaluations."""

    @property
    def manual_gc_eval(self) -> bool | int:
        """Also collect around evaluations: any number but 0 counts as true."""

    @property
    def train_sync_interval(self) -> int | None:
        """Steps between device synchronisations."""

    @property
    def empty_unused_memory_level(self) -> int:
        """Release unused device memory after the backward pass (1), and also after the optimizer step (2)."""

    @property
    def check_weight_hash_across_dp_replicas_interval(self) -> int | None:
        """Steps between comparisons of the weights of data-parallel replicas."""

    @property
    def check_optimizer_step_success(self) -> bool:
        """Treat a step as successful only if it was successful on all model-parallel ranks."""

    @property
    def skip_sync_grad_norm_across_mp(self) -> bool:
        """Keep the gradient norm of each model-parallel rank instead of synchronising it."""


class ValidationSettings(Protocol):
    """Fields that the loop reads from section `validation`."""

    @property
    def eval_iters(self) -> int | None:
        """Global batches per evaluation; None or 0: no evaluation."""

    @property
    def eval_interval(self) -> int | None:
        """Steps between evaluations; None or 0: none during training."""

    @property
    def start_eval_at_iter(self) -> int | None:
        """First step that may be followed by an evaluation."""

    @property
    def eval_global_batch_size(self) -> int | None:
        """Sequences per evaluation batch over all ranks; None: as in training."""

    @property
    def eval_micro_batch_size(self) -> int | None:
        """Sequences per evaluation microbatch and rank; None: as in training."""

    @property
    def skip_train(self) -> bool:
        """Skip training."""

    @property
    def full_validation(self) -> bool:
        """Evaluate every validation set completely."""

    @property
    def multiple_validation_sets(self) -> bool:
        """Report each validation set separately."""


class CheckpointSettings(Protocol):
    """Fields that the loop reads from section `checkpoint`."""

    @property
    def save(self) -> str | None:
        """Folder of the checkpoints; None: nothing is saved."""

    @property
    def save_interval(self) -> int | Literal["auto"] | None:
        """Steps between persistent checkpoints; 0: none, not even at the end. "auto" must be resolved before."""

    @property
    def non_persistent_save_interval(self) -> int | None:
        """Steps between non-persistent checkpoints."""


class DdpSettings(Protocol):
    """Fields that the loop reads from section `ddp`."""

    @property
    def use_megatron_fsdp(self) -> bool:
        """Use Megatron-FSDP instead of Megatron's DistributedDataParallel."""

    @property
    def overlap_param_gather(self) -> bool:
        """Gather parameters in forward pre-hooks."""


class OptimizerSettings(Protocol):
    """Fields that the loop reads from section `optimizer`."""

    @property
    def use_distributed_optimizer(self) -> bool:
        """Shard the optimizer state over the data-parallel ranks."""

    @property
    def reuse_grad_buf_for_mxfp8_param_ag(self) -> bool:
        """Gather MXFP8 parameters through the gradient buffer."""


class ModelSettings(Protocol):
    """Field that the loop reads from section `model`."""

    @property
    def seq_length(self) -> int | None:
        """Tokens per sequence."""


class LoopSettings(Protocol):
    """Configuration container; the sections that the loop reads."""

    @property
    def train(self) -> TrainSettings:
        """Steps, batch sizes, exit conditions."""

    @property
    def validation(self) -> ValidationSettings:
        """Interval and length of evaluations."""

    @property
    def checkpoint(self) -> CheckpointSettings:
        """Save intervals."""

    @property
    def ddp(self) -> DdpSettings:
        """Settings that determine whether forward pre-hooks gather parameters."""

    @property
    def optimizer(self) -> OptimizerSettings:
        """Settings that determine whether forward pre-hooks gather parameters."""

    @property
    def model(self) -> ModelSettings:
        """Sequence length."""

    @property
    def data_parallel_size(self) -> int | None:
        """Number of data-parallel ranks; None: not resolved yet, which is an error."""


class GlobalState(Protocol):
    """State of a trainer: the fields that the loop reads and advances."""

    @property
    def train_state(self) -> TrainState:
        """Counters, advanced by the loop."""

    @property
    def cfg(self) -> LoopSettings:
        """Configuration; never modified by the loop."""

    @property
    def start_time(self) -> float | None:
        """Start of the job, on the clock that is passed to `train`; None: the time at which `train` is called."""


def batch_plan(cfg: LoopSettings) -> BatchPlan:
    """Return the plan of the training batches.

    Raises:
        BatchSizeError: a size is not set, or the sizes do not divide.
    """
    train = cfg.train
    schedule = train.step_batch_size_schedule
    batch_size = train.global_batch_size
    return BatchPlan.of(
        _size("train.global_batch_size", batch_size) if schedule is None else 0,
        micro_batch_size=_size("train.micro_batch_size", train.micro_batch_size),
        data_parallel_size=_size("data_parallel_size", cfg.data_parallel_size),
        rampup_batch_size=train.rampup_batch_size,
        step_batch_size_schedule=schedule,
        seq_length=cfg.model.seq_length,
        decrease_batch_size_if_needed=train.decrease_batch_size_if_needed,
    )


def evaluation_batch(cfg: LoopSettings) -> StepBatch:
    """Return the batch of one evaluation step; sizes that are not set are those of training.

    The global batch size of training is rounded down if training rounds it down. A separate evaluation batch size must
    divide evenly.

    Raises:
        BatchSizeError: a size is not set, or the sizes do not divide.
    """
    batch_size, micro = cfg.validation.eval_global_batch_size, cfg.validation.eval_micro_batch_size
    return step_batch(
        _size("train.global_batch_size", cfg.train.global_batch_size if batch_size is None else batch_size),
        micro_batch_size=_size(
            "train.micro_batch_size", cfg.train.micro_batch_size if micro is None else micro
        ),
        data_parallel_size=_size("data_parallel_size", cfg.data_parallel_size),
        decrease_batch_size_if_needed=batch_size in (None, cfg.train.global_batch_size)
        and cfg.train.decrease_batch_size_if_needed,
    )


def _size(field_path: str, value: int | None) -> int:
    if value is None:
        raise BatchSizeError(
            f"{field_path}: is not set (None), but it determines the number of microbatches. Set it."
        )
    return value
