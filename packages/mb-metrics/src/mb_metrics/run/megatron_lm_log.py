"""Megatron-LM's call of `training_log`, which has no configuration and no model: they are taken from its arguments.

Adapter for torch. Megatron Core is imported only if the batch size grows during the run.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import wraps
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from mb_metrics.config import LoggerConfig
from mb_metrics.errors import TrainingLogCallError
from mb_metrics.recorder.metrics import Metrics
from mb_metrics.run.megatron_log import log_step


def log_megatron_lm_step(  # noqa: PLR0913 - the signature of Megatron-LM
    loss_dict: Mapping[str, Tensor],
    total_loss_dict: MutableMapping[str, Any],
    learning_rate: float | None,
    iteration: int,
    loss_scale: float,
    report_memory_flag: bool,
    skipped_iter: int,
    grad_norm: float | Tensor | None,
    params_norm: float | None,
    num_zeros_in_grad: int | None,
    max_attention_logit: float | None,
    pg_collection: Any = None,
    is_first_iteration: bool = False,
    seqlen_squared_sum_in_batch: float | None = None,
    total_real_tokens_in_batch: float | None = None,
    *,
    metrics: Metrics,
    args: Any,
    model: Sequence[Any] = (),
    print_line: Callable[[str], object] = print,
) -> bool:
    """Record one step of Megatron-LM's loop, as `training_log` does. Call it after each step, on every rank.

    The arguments by position are those of `log_step`, with `iteration` (completed steps, including this one) and
    `max_attention_logit` (the largest attention logit). `total_real_tokens_in_batch` are the tokens in this step
    without padding; None: sequences times their length. `is_first_iteration` and `seqlen_squared_sum_in_batch` are not
    read: `metrics` decides what is printed, and has its own count of FLOPs. `args` are Megatron-LM's arguments
    (`get_args()`): the intervals, `log_memory_to_tensorboard`, the batch sizes and `rampup_batch_size`, `seq_length`,
    `consumed_train_samples` and `iteration` are read. `model` has the model chunks of this rank, for the memory report
    and the metrics of experts; `print_line` prints a line of the memory report.
    """
    samples = _global_batch_size(args)
    tokens = samples * args.seq_length if total_real_tokens_in_batch is None else total_real_tokens_in_batch
    counters = SimpleNamespace(
        step=iteration, consumed_train_samples=args.consumed_train_samples, skipped_train_samples=0
    )
    logger = LoggerConfig(
        log_interval=args.log_interval, log_memory_to_tensorboard=args.log_memory_to_tensorboard
    )
    section = model[0].config if model and hasattr(model[0], "config") else None
    config: Any = SimpleNamespace(logger=logger, train=args, model=section)
    state: Any = SimpleNamespace(train_state=counters, metrics=metrics)
    return log_step(
        loss_dict,
        total_loss_dict,
        learning_rate,
        None,
        loss_scale,
        report_memory_flag,
        skipped_iter,
        grad_norm,
        params_norm,
        num_zeros_in_grad,
        config,
        state,
        None,
        model,
        pg_collection,
        max_attention_logit,
        args.iteration,
        args.seq_length,
        samples=samples,
        tokens=int(tokens),
        print_line=print_line,
    )


def _global_batch_size(args: Any) -> int:
    if args.rampup_batch_size is None:
        return int(args.global_batch_size)
    calculator = import_module("megatron.core.num_microbatches_calculator")
    return int(calculator.get_current_global_batch_size())


ONLY_MEGATRON_BRIDGE = {
    "decoupled_learning_rate",
    "config",
    "global_state",
    "history_wct",
    "loaded_iteration",
}
ONLY_MEGATRON_LM = {"iteration", "max_attention_logit", "is_first_iteration", "args"}


@wraps(log_step)
def training_log(*arguments: Any, **named: Any) -> bool:
    """Record one step; see `log_step`. With `args` or `iteration` by name, the call is that of Megatron-LM.

    Raises:
        TrainingLogCallError: Arguments of both are mixed, or `metrics` or `args` is missing.
    """
    theirs = named.keys() & ONLY_MEGATRON_LM
    if not theirs:
        return log_step(*arguments, **named)
    mixed = named.keys() & ONLY_MEGATRON_BRIDGE
    if mixed:
        raise TrainingLogCallError(
            f"training_log: {', '.join(sorted(mixed))} of Megatron-Bridge's call and {', '.join(sorted(theirs))} of "
            "Megatron-LM's exclude each other, because the two have other positions. Pass the arguments of one."
        )
    missing = {"metrics", "args"} - named.keys()
    if missing:
        raise TrainingLogCallError(
            f"training_log: {' and '.join(sorted(missing))} missing, because Megatron-LM's call has no receiver of the "
            "records and reads its arguments from a global. Pass metrics=Metrics(...) and args=get_args()."
        )
    return log_megatron_lm_step(*arguments, **named)
