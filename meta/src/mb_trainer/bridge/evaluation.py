"""Evaluation, with Megatron-Bridge's parameters and results. Imports torch and megatron."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.utils import get_model_config

from mb_loop import CallbackManager, NonLossData, TrainParts, validation_line
from mb_loop import evaluate as evaluate_parts
from mb_loop.trainer_api import capture_full_iteration, evaluation_batch, max_across_ranks
from mb_trainer.bridge.process_groups import get_pg_collection
from mb_trainer.errors import UserCodeError
from mb_trainer.run.state import GlobalState

Losses = dict[str, torch.Tensor]


def evaluate(  # noqa: PLR0913 (Megatron-Bridge's arguments)
    state: GlobalState,
    forward_step_func: Callable[..., Any],
    data_iterator: Any,
    model: Sequence[Any],
    process_non_loss_data_func: Callable[..., Any] | None,
    config: Any,
    verbose: bool = False,
    non_loss_data_func: Callable[..., Any] | None = None,
    p2p_communicator: Any = None,
    pg_collection: Any = None,
    callback_manager: CallbackManager | None = None,
    is_test: bool = False,
) -> tuple[Losses | None, Any, bool]:
    """Average the losses of `validation.eval_iters` global batches. Collective over all ranks of the model.

    Args:
        state: Counters and settings.
        forward_step_func: `(iterator, model)` or `(state, iterator, model)`.
        data_iterator: An iterator, a list with one per chunk, or None on ranks that read no data.
        model: Model chunks of this rank.
        process_non_loss_data_func: If it is set and `non_loss_data_func` is not, the last batch runs again, and its
            non-loss data are returned. It is called by `evaluate_and_print_results` alone.
        config: `state.cfg`, which holds the settings, or its model section.
        verbose: Print the number of samples and each batch, on rank 0.
        non_loss_data_func: Called with the chunks at the end; its result is returned.
        p2p_communicator: Communicator of the pipeline; None: one of the groups.
        pg_collection: Process groups; None: those of the model.
        callback_manager: Receives `on_eval_*`, or `on_test_*`.
        is_test: Fire the events of a test.

    Returns:
        Losses by name, empty on all but the last pipeline stage; the non-loss data; and whether
        `train.exit_duration_in_mins` was reached before the last batch. The first two are then None.

    Raises:
        mb_trainer.errors.UserCodeError: `config` is not `state.cfg`.
    """
    if config is not None and config is not state.cfg and config is not state.cfg.model:
        raise UserCodeError(
            "config: is another object than state.cfg, which holds the settings of an evaluation. Pass state.cfg."
        )
    groups = get_pg_collection(model) if pg_collection is None else pg_collection
    transformer = get_model_config(model[0])
    schedule = get_forward_backward_func(
        groups.pp.size(), state.cfg.model.virtual_pipeline_model_parallel_size
    )
    collected: list[Any] = []
    reached: list[bool] = []
    takes_data = process_non_loss_data_func is not None or non_loss_data_func is not None
    losses = evaluate_parts(
        TrainParts(
            forward_step_func=forward_step_func,
            model=model,
            valid_data_iterator=data_iterator,
            test_data_iterator=data_iterator,
            forward_backward_func=capture_full_iteration(schedule, state.cfg.model, transformer=transformer),
            pg_collection=groups,
            p2p_communicator=p2p_communicator or P2PCommunicator(pp_group=groups.pp, config=transformer),
            callbacks=_verbose(state, callback_manager, is_test=is_test) if verbose else callback_manager,
            stop_evaluation=partial(_duration_reached, state, reached),
            non_loss=NonLossData(
                collect=non_loss_data_func,
                process=(lambda data, _step, _writer: collected.append(data)) if takes_data else None,
                writer=collected,
            ),
        ),
        state,
        kind="test" if is_test else "eval",
    )
    if any(reached):
        return None, None, True
    tensors = {name: torch.tensor(loss) for name, loss in losses.items()}
    return tensors, collected[0] if collected else None, False


def _verbose(state: GlobalState, callbacks: CallbackManager | None, *, is_test: bool) -> CallbackManager:
    """Return a manager that prints each batch on rank 0 before it calls the given one."""
    manager = CallbackManager()
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        batches, samples = state.cfg.validation.eval_iters or 0, evaluation_batch(state.cfg).samples
        print(f"Evaluating on {batches * samples} samples")
        numbers: Iterator[int] = iter(range(1, batches + 1))
        manager.register(
            "on_test_step_start" if is_test else "on_eval_step_start",
            lambda _context: print(f"Evaluating iter {next(numbers)}/{batches}"),
        )
    if callbacks is not None:
        manager.user_state = callbacks.user_state
        for event in manager.events:
            manager.register(event, partial(callbacks.fire, event))
    return manager


def _duration_reached(state: GlobalState, reached: list[bool]) -> bool:
    """Note and return whether `train.exit_duration_in_mins` is reached on any rank. Collective if it is set."""
    minutes = state.cfg.train.exit_duration_in_mins
    if minutes is None or state.start_time is None:
        return False
    reached.append(max_across_ranks(time.time() - state.start_time) > minutes * 60)
    return reached[-1]


def evaluate_and_print_results(  # noqa: PLR0913 (Megatron-Bridge's arguments)
    state: GlobalState,
    prefix: str,
    forward_step_func: Callable[..., Any],
    data_iterator: Any,
    model: Sequence[Any],
    config: Any,
    verbose: bool = False,
    write_to_tensorboard: bool = True,
    process_non_loss_data_func: Callable[..., Any] | None = None,
    non_loss_data_func: Callable[..., Any] | None = None,
    p2p_communicator: Any = None,
    pg_collection: Any = None,
    callback_manager: CallbackManager | None = None,
    is_test: bool = False,
) -> Losses | None:
    """Evaluate, print the losses on the last rank, and write them to its loggers. Collective.

    The loggers are `tensorboard_logger`, `wandb_logger`, `mlflow_logger` and `comet_logger` of the state. Errors as
    `evaluate`.

    Args:
        state: As for `evaluate`, like the arguments that are not described here.
        prefix: Text after "validation loss at" in the printed line.
        forward_step_func: See `evaluate`.
        data_iterator: See `evaluate`.
        model: See `evaluate`.
        config: See `evaluate`.
        verbose: See `evaluate`.
        write_to_tensorboard: Write to `tensorboard_logger`.
        process_non_loss_data_func: Called as (data, step, writer) with `tensorboard_logger`.
        non_loss_data_func: See `evaluate`.
        p2p_communicator: See `evaluate`.
        pg_collection: See `evaluate`.
        callback_manager: See `evaluate`.
        is_test: See `evaluate`.

    Returns:
        The losses; None if `train.exit_duration_in_mins` was reached before the last batch.
    """
    losses, data, _stopped = evaluate(
        state,
        forward_step_func,
        data_iterator,
        model,
        process_non_loss_data_func,
        config,
        verbose,
        non_loss_data_func,
        p2p_communicator=p2p_communicator,
        pg_collection=pg_collection,
        callback_manager=callback_manager,
        is_test=is_test,
    )
    distributed = torch.distributed.is_initialized()
    if losses is None or (
        distributed and torch.distributed.get_rank() < torch.distributed.get_world_size() - 1
    ):
        return losses
    values = {name: float(loss) for name, loss in losses.items()}
    writer = state.tensorboard_logger if write_to_tensorboard else None
    _write(state, values, writer)
    if process_non_loss_data_func is not None and writer is not None:
        process_non_loss_data_func(data, state.train_state.step, writer)
    line = validation_line(prefix, values)
    dashes = "-" * (len(line) + 1)
    print(f"{dashes}\n{line}\n{dashes}")
    return losses


def _write(state: GlobalState, losses: Mapping[str, float], writer: Any) -> None:
    """Write losses, and with `logger.log_validation_ppl_to_tensorboard` perplexities, to the loggers of the state."""
    step, samples = state.train_state.step, state.train_state.consumed_train_samples
    perplexities = state.cfg.logger.log_validation_ppl_to_tensorboard
    points: dict[str, float] = {}
    for name, loss in losses.items():
        points[f"{name} validation"] = loss
        if perplexities:
            points[f"{name} validation ppl"] = math.exp(min(20, loss))
    if writer is not None:
        for name, value in points.items():
            writer.add_scalar(name, value, step)
            writer.add_scalar(f"{name} vs samples", value, samples)
    if state.wandb_logger is not None:
        state.wandb_logger.log(points, step)
    if state.mlflow_logger is not None:
        state.mlflow_logger.log_metrics(points, step=step)
    if state.comet_logger is not None:
        state.comet_logger.log_metrics(points, step=step)
