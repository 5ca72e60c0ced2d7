"""Plain settings and state for use of the loop without a trainer."""

import json
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from mb_loop.state import TrainState


@dataclass(slots=True, kw_only=True)
class TrainSection:
    """Section `train` for use without a trainer."""

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


@dataclass(slots=True, kw_only=True)
class ValidationSection:
    """Section `validation` for use without a trainer."""

    eval_iters: int | None = None
    eval_interval: int | None = None
    start_eval_at_iter: int | None = None
    eval_global_batch_size: int | None = None
    eval_micro_batch_size: int | None = None
    skip_train: bool = False
    full_validation: bool = False
    multiple_validation_sets: bool = False


@dataclass(slots=True, kw_only=True)
class CheckpointSection:
    """Section `checkpoint` for use without a trainer."""

    save: str | None = None
    async_save: bool = False
    save_interval: int | None = None
    non_persistent_save_interval: int | None = None


@dataclass(slots=True, kw_only=True)
class LoggingSection:
    """Section `logger` for use without a trainer."""

    log_progress: bool = False


@dataclass(slots=True, kw_only=True)
class DdpSection:
    """Section `ddp` for use without a trainer: no forward pre-hooks."""

    use_megatron_fsdp: bool = False
    overlap_param_gather: bool = False


@dataclass(slots=True, kw_only=True)
class OptimizerSection:
    """Section `optimizer` for use without a trainer: every rank holds the complete state."""

    use_distributed_optimizer: bool = False
    reuse_grad_buf_for_mxfp8_param_ag: bool = False


@dataclass(slots=True, kw_only=True)
class ModelSection:
    """Section `model` for use without a trainer."""

    seq_length: int | None = None


@dataclass(slots=True, kw_only=True)
class LoopConfig:
    """Configuration for use without a trainer."""

    train: TrainSection
    validation: ValidationSection = field(default_factory=ValidationSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    logger: LoggingSection = field(default_factory=LoggingSection)
    ddp: DdpSection = field(default_factory=DdpSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    model: ModelSection = field(default_factory=ModelSection)
    data_parallel_size: int = 1

    def to_yaml(self, path: Path | str) -> None:
        """Write the settings to a file, as a checkpointer does with each checkpoint. JSON is YAML."""
        values = asdict(self, dict_factory=_as_json)
        Path(path).write_text(json.dumps(values, indent=2, default=str) + "\n", encoding="utf-8")


def _as_json(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return fields as JSON can hold them: signals by name, of which json would write the number, ranges as lists."""
    return {
        name: value.name if isinstance(value, Enum) else [*value] if isinstance(value, range) else value
        for name, value in fields
    }


@dataclass(slots=True, kw_only=True)
class LoopState:
    """Global state for use without a trainer. `of` takes common settings by name; set any other in `cfg`.

    >>> state = LoopState.of(train_iters=10)
    >>> state.cfg.train.manual_gc = True
    """

    cfg: Any
    """A `LoopConfig`, or a configuration with the fields of `LoopSettings`, such as one of mb-config."""
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
        """Build a state. With `global_batch_size=None` each rank runs one microbatch per step.

        Validation is enabled by `eval_iters`, and runs during training if `eval_interval` is set as well.
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
