"""What the loop reads of a configuration, and a plain state for people who have no trainer around it."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mb_loop.microbatches import BatchPlan, BatchSizeError, StepBatch, step_batch
from mb_loop.state import TrainState


class TrainSettings(Protocol):
    """The fields of the section `train` that are read."""

    @property
    def train_iters(self) -> int | None:
        """Steps of the whole training."""

    @property
    def micro_batch_size(self) -> int | None:
        """Sequences of one rank in one pass."""

    @property
    def global_batch_size(self) -> int | None:
        """Sequences of one step over all ranks."""

    @property
    def rampup_batch_size(self) -> Sequence[int] | None:
        """[first batch, increment, samples]."""

    @property
    def step_batch_size_schedule(self) -> str | None:
        """Batch sizes by what was consumed, such as "0:768 250B:1536"."""

    @property
    def decrease_batch_size_if_needed(self) -> bool:
        """Round the batch down instead of refusing it."""

    @property
    def iterations_to_skip(self) -> Sequence[int]:
        """One-based steps whose data is used up without training."""

    @property
    def exit_interval(self) -> int | None:
        """Leave at multiples of this step."""

    @property
    def exit_duration_in_mins(self) -> float | None:
        """Leave after this many minutes."""

    @property
    def exit_signal_handler(self) -> bool:
        """Save and leave after the step in which any rank receives `exit_signal`."""

    @property
    def exit_signal(self) -> signal.Signals:
        """The signal that requests a stop."""

    @property
    def manual_gc(self) -> bool:
        """Collect garbage on a schedule instead of at any moment."""

    @property
    def manual_gc_interval(self) -> int:
        """Steps between collections; 0: only around evaluations."""

    @property
    def manual_gc_eval(self) -> bool:
        """Collect around evaluations too."""

    @property
    def train_sync_interval(self) -> int | None:
        """Steps between waits for the device."""

    @property
    def empty_unused_memory_level(self) -> int:
        """Free the device cache after the backward pass (1) and after the optimizer too (2)."""

    @property
    def check_weight_hash_across_dp_replicas_interval(self) -> int | None:
        """Steps between comparisons of the weights of replicas."""

    @property
    def check_optimizer_step_success(self) -> bool:
        """A step counts as done only where it was done on all model-parallel ranks."""

    @property
    def skip_sync_grad_norm_across_mp(self) -> bool:
        """Leave the gradient norm as each model-parallel rank has it."""


class ValidationSettings(Protocol):
    """The fields of the section `validation` that are read."""

    @property
    def eval_iters(self) -> int | None:
        """Global batches of one evaluation; None or 0: none."""

    @property
    def eval_interval(self) -> int | None:
        """Steps between evaluations; None or 0: none in training."""

    @property
    def start_eval_at_iter(self) -> int | None:
        """First step that may be followed by an evaluation."""

    @property
    def eval_global_batch_size(self) -> int | None:
        """Sequences of one evaluation batch; None: as in training."""

    @property
    def eval_micro_batch_size(self) -> int | None:
        """Sequences of one rank in one evaluation pass; None: as in training."""

    @property
    def skip_train(self) -> bool:
        """Make no training step."""

    @property
    def full_validation(self) -> bool:
        """Evaluate each validation set to its end."""

    @property
    def multiple_validation_sets(self) -> bool:
        """Report each validation set on its own."""


class CheckpointSettings(Protocol):
    """The fields of the section `checkpoint` that are read."""

    @property
    def save_interval(self) -> int | None:
        """Steps between lasting checkpoints; 0: not even at the end."""

    @property
    def non_persistent_save_interval(self) -> int | None:
        """Steps between temporary checkpoints."""


class DdpSettings(Protocol):
    """The fields of the section `ddp` that are read."""

    @property
    def use_megatron_fsdp(self) -> bool:
        """Megatron's FSDP instead of its DDP."""

    @property
    def overlap_param_gather(self) -> bool:
        """Parameters are gathered by forward pre-hooks."""


class OptimizerSettings(Protocol):
    """The fields of the section `optimizer` that are read."""

    @property
    def use_distributed_optimizer(self) -> bool:
        """Optimizer states are spread over the data-parallel ranks."""

    @property
    def reuse_grad_buf_for_mxfp8_param_ag(self) -> bool:
        """MXFP8 parameters are gathered through the gradient buffer."""


class ModelSettings(Protocol):
    """The field of the section `model` that is read."""

    @property
    def seq_length(self) -> int | None:
        """Tokens of a sequence."""


class LoopSettings(Protocol):
    """A configuration container, as far as the loop reads it."""

    @property
    def train(self) -> TrainSettings:
        """Steps, batch sizes, exits."""

    @property
    def validation(self) -> ValidationSettings:
        """When and how much to evaluate."""

    @property
    def checkpoint(self) -> CheckpointSettings:
        """When to save."""

    @property
    def ddp(self) -> DdpSettings:
        """Whether forward pre-hooks gather parameters."""

    @property
    def optimizer(self) -> OptimizerSettings:
        """Whether forward pre-hooks gather parameters."""

    @property
    def model(self) -> ModelSettings:
        """The sequence length."""

    @property
    def data_parallel_size(self) -> int | None:
        """Ranks that read different data; None: not resolved yet, which is an error."""


class GlobalState(Protocol):
    """The state of a trainer, as far as the loop reads and advances it."""

    @property
    def train_state(self) -> TrainState:
        """The counters, which the loop advances."""

    @property
    def cfg(self) -> LoopSettings:
        """The configuration, which the loop only reads."""

    @property
    def start_time(self) -> float | None:
        """When the job began, on the clock that is given to `train`; None: when `train` is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSection:
    """A plain `train` section."""

    train_iters: int | None = None
    micro_batch_size: int | None = 1
    global_batch_size: int | None = 1
    rampup_batch_size: Sequence[int] | None = None
    step_batch_size_schedule: str | None = None
    decrease_batch_size_if_needed: bool = False
    iterations_to_skip: Sequence[int] = ()
    exit_interval: int | None = None
    exit_duration_in_mins: float | None = None
    exit_signal_handler: bool = False
    exit_signal: signal.Signals = signal.SIGTERM
    manual_gc: bool = False
    manual_gc_interval: int = 0
    manual_gc_eval: bool = True
    train_sync_interval: int | None = None
    empty_unused_memory_level: int = 0
    check_weight_hash_across_dp_replicas_interval: int | None = None
    check_optimizer_step_success: bool = True
    skip_sync_grad_norm_across_mp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSection:
    """A plain `validation` section."""

    eval_iters: int | None = None
    eval_interval: int | None = None
    start_eval_at_iter: int | None = None
    eval_global_batch_size: int | None = None
    eval_micro_batch_size: int | None = None
    skip_train: bool = False
    full_validation: bool = False
    multiple_validation_sets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSection:
    """A plain `checkpoint` section."""

    save: str | None = None
    async_save: bool = False
    save_interval: int | None = None
    non_persistent_save_interval: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSection:
    """A plain `logger` section."""

    log_progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpSection:
    """A plain `ddp` section: no forward pre-hooks."""

    use_megatron_fsdp: bool = False
    overlap_param_gather: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSection:
    """A plain `optimizer` section: every rank holds all states."""

    use_distributed_optimizer: bool = False
    reuse_grad_buf_for_mxfp8_param_ag: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """A plain `model` section."""

    seq_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """A plain configuration."""

    train: TrainSection
    validation: ValidationSection = ValidationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    logger: LoggingSection = LoggingSection()
    ddp: DdpSection = DdpSection()
    optimizer: OptimizerSection = OptimizerSection()
    model: ModelSection = ModelSection()
    data_parallel_size: int = 1


@dataclass(slots=True, kw_only=True)
class LoopState:
    """A global state for a loop of one's own. `of` takes the usual settings by name; any other goes into `cfg`."""

    cfg: LoopConfig
    train_state: TrainState = field(default_factory=TrainState)
    start_time: float | None = None

    @classmethod
    def of(  # noqa: PLR0913 (one keyword per setting)
        cls,
        *,
        train_iters: int,
        micro_batch_size: int = 1,
        global_batch_size: int | None = None,
        data_parallel_size: int = 1,
        seq_length: int | None = None,
        eval_iters: int | None = None,
        eval_interval: int | None = None,
        save_interval: int | None = None,
        exit_interval: int | None = None,
        exit_duration_in_mins: float | None = None,
        exit_signal_handler: bool = False,
        iterations_to_skip: Sequence[int] = (),
        rampup_batch_size: Sequence[int] | None = None,
        step_batch_size_schedule: str | None = None,
        decrease_batch_size_if_needed: bool = False,
    ) -> "LoopState":
        """Build a state; None as global batch means one microbatch a step on each rank.

        Validation is on when `eval_iters` is set, and happens in training when `eval_interval` is set too.
        """
        if global_batch_size is None:
            global_batch_size = micro_batch_size * data_parallel_size
        return cls(
            cfg=LoopConfig(
                train=TrainSection(
                    train_iters=train_iters,
                    micro_batch_size=micro_batch_size,
                    global_batch_size=global_batch_size,
                    rampup_batch_size=rampup_batch_size,
                    step_batch_size_schedule=step_batch_size_schedule,
                    decrease_batch_size_if_needed=decrease_batch_size_if_needed,
                    iterations_to_skip=iterations_to_skip,
                    exit_interval=exit_interval,
                    exit_duration_in_mins=exit_duration_in_mins,
                    exit_signal_handler=exit_signal_handler,
                ),
                validation=ValidationSection(eval_iters=eval_iters, eval_interval=eval_interval),
                checkpoint=CheckpointSection(save_interval=save_interval),
                model=ModelSection(seq_length=seq_length),
                data_parallel_size=data_parallel_size,
            ),
            train_state=TrainState(do_train=train_iters > 0, do_valid=bool(eval_iters)),
        )


def batch_plan(cfg: LoopSettings) -> BatchPlan:
    """Return the plan of the training batches.

    Raises:
        BatchSizeError: a size is not set, or the sizes do not fit.
    """
    train = cfg.train
    schedule = train.step_batch_size_schedule
    wanted = train.global_batch_size
    return BatchPlan.of(
        _size("train.global_batch_size", wanted) if schedule is None else 0,
        micro_batch_size=_size("train.micro_batch_size", train.micro_batch_size),
        data_parallel_size=_size("data_parallel_size", cfg.data_parallel_size),
        rampup_batch_size=train.rampup_batch_size,
        step_batch_size_schedule=schedule,
        seq_length=cfg.model.seq_length,
        decrease_batch_size_if_needed=train.decrease_batch_size_if_needed,
    )


def evaluation_batch(cfg: LoopSettings) -> StepBatch:
    """Return the batch of one evaluation step; the training sizes stand in for those that are not set.

    The training's global batch is rounded down where the training rounds it; one of its own has to divide.

    Raises:
        BatchSizeError: a size is not set, or the sizes do not fit.
    """
    wanted, micro = cfg.validation.eval_global_batch_size, cfg.validation.eval_micro_batch_size
    return step_batch(
        _size("train.global_batch_size", cfg.train.global_batch_size if wanted is None else wanted),
        micro_batch_size=_size(
            "train.micro_batch_size", cfg.train.micro_batch_size if micro is None else micro
        ),
        data_parallel_size=_size("data_parallel_size", cfg.data_parallel_size),
        decrease_batch_size_if_needed=wanted in (None, cfg.train.global_batch_size)
        and cfg.train.decrease_batch_size_if_needed,
    )


def _size(field_path: str, value: int | None) -> int:
    if value is None:
        raise BatchSizeError(
            f"{field_path}: is not set (None), but the number of microbatches follows from it. Set it."
        )
    return value
