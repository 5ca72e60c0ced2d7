"""Evaluation of a model on global batches. Imports torch."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from mb_loop.callbacks import EventDispatcher, EventName
from mb_loop.errors import LossShapeError, TrainSettingsError
from mb_loop.evaluation.non_loss import EvaluationForward, NonLossData
from mb_loop.evaluation.validation import (
    evaluation_due,
    evaluation_possible,
    validation_line,
    validation_sets,
)
from mb_loop.exits.exit_conditions import StopEvaluation, never_stop
from mb_loop.parts import TrainParts
from mb_loop.rerun_machine import checks_paused
from mb_loop.settings import GlobalState, evaluation_batch
from mb_loop.step.forward_backward import ForwardBackwardRunner
from mb_loop.step.hooks import ForwardPreHooks, forward_pre_hooks
from mb_loop.step.losses import LossGroups, sum_and_count

EvaluationKind = Literal["eval", "test"]
_EVENTS: dict[EvaluationKind, tuple[EventName, EventName, EventName, EventName]] = {
    "eval": ("on_eval_start", "on_eval_step_start", "on_eval_step_end", "on_eval_end"),
    "test": ("on_test_start", "on_test_step_start", "on_test_step_end", "on_test_end"),
}
"""Events at the start of an evaluation, before and after each batch, and at its end."""


def evaluate(parts: TrainParts, state: GlobalState, *, kind: EvaluationKind = "eval") -> dict[str, float]:
    """Average the losses of `validation.eval_iters` global batches, with the model in evaluation mode.

    Collective over all ranks of the model; one host synchronisation per set, at its end. Each batch is counted in
    `consumed_valid_samples`. An evaluation that is stopped early is counted as a complete one, so that a resumed run
    starts each validation set where an uninterrupted run would. The mode of each chunk and the forward pre-hooks are
    restored, also after an exception.

    Args:
        parts: forward step, model and schedule; validation and test data; callbacks, which receive the events of
            `kind`; `stop_evaluation`, whose losses are discarded, because an average over fewer batches is not
            comparable; and `non_loss`, which is collected once at the end of an evaluation that was not stopped early.
            With several sets, it is data of the last set's last batch.
        state: counters and settings.
        kind: "eval" or "test", which selects the data.

    Returns:
        Loss by name, or by "name set" with several sets. A loss over no token is not defined and left out, with a
        warning. Empty on all but the last pipeline stage, if there is nothing to evaluate, and if the evaluation was
        stopped early.

    Raises:
        BatchSizeError: the evaluation batch does not divide.
        DataExhaustedError: the data ended.
        LossShapeError: batches report different losses, or a loss that cannot be averaged.
        ParallelSetupError: a parallel run has no group or no schedule.
        ValidationSetError: the settings require validation sets, but a plain iterator was passed.
    """
    losses = run_evaluation(
        parts.forward_backward(
            state, parts.valid_data_iterator if kind == "eval" else parts.test_data_iterator
        ),
        parts.evaluation_events(state),
        groups=parts.pg_collection,
        hooks=forward_pre_hooks(state.cfg, parts.model, parts.optimizer),
        kind=kind,
        stop_evaluation=never_stop if parts.stop_evaluation is None else parts.stop_evaluation,
        non_loss=parts.non_loss,
    )
    return losses or {}


def evaluate_after_training(
    parts: TrainParts,
    state: GlobalState,
    *,
    validated: bool = False,
    write: Callable[[str], object] | None = print,
) -> tuple[str, str]:
    """Evaluate on the validation set and the test set, as `do_valid` and `do_test` of the state define.

    Collective. Call it after `train` returned the reason "finished", "early_stop" or "skip_train".

    Args:
        parts: as for `evaluate`. A rerun machine is paused meanwhile, so that nothing is repeated.
        state: counters and settings; `do_valid` and `do_test` select the evaluations.
        validated: the last step is already validated, as `TrainOutcome.validated` is True; only the test runs.
        write: takes each result as one line between dashes. Pass None on all ranks except one of the last pipeline
            stage.

    Returns:
        The two lines; an empty string for an evaluation that did not run, and on ranks without losses.
    """
    counters = state.train_state

    def line(name: str, kind: EvaluationKind) -> str:
        losses = evaluate(parts, state, kind=kind)
        return evaluation_line(f"iteration {counters.step} on {name} set", losses, write=write)

    with checks_paused(parts.rerun_machine):
        return (
            line("validation", "eval") if counters.do_valid and not validated else "",
            line("test", "test") if counters.do_test else "",
        )


def evaluation_line(
    prefix: str, losses: dict[str, float], *, write: Callable[[str], object] | None = print
) -> str:
    """Return the line of an evaluation, and write it between dashes; without losses do nothing."""
    if not losses:
        return ""
    line = validation_line(prefix, losses)
    if write is not None:
        dashes = "-" * len(line)
        write(f"{dashes}\n{line}\n{dashes}")
    return line


class ScheduledEvaluation:
    """Validation after each step at which one is due.

    Args:
        parts: as for `evaluate`.
        state: counters and settings.
        hooks: disabled during each evaluation, so that all parameters are gathered.
        stop_evaluation: as the field of `TrainParts`; here it is always set.
        around: returns a context manager that is entered for each evaluation, such as one that measures its time.

    Raises:
        TrainSettingsError: there is no validation data on a rank that reads training data, or there is some
            although the counters have none.
        BatchSizeError: the evaluation batch does not divide.
        ValidationSetError: the settings require validation sets, but a plain iterator was passed.
    """

    def __init__(
        self,
        parts: TrainParts,
        state: GlobalState,
        *,
        hooks: ForwardPreHooks,
        stop_evaluation: StopEvaluation,
        around: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._state, self._parts = state, parts
        self._stop_evaluation, self._around = stop_evaluation, around
        self._forward_backward = parts.forward_backward(state, parts.valid_data_iterator)
        self._events = parts.evaluation_events(state)
        self._hooks = hooks
        self._last_complete: int | None = None
        self._check()

    def _check(self) -> None:
        """Raise now what the first evaluation would raise."""
        cfg, data = self._state.cfg, self._parts.valid_data_iterator
        interval, eval_iters = cfg.validation.eval_interval, cfg.validation.eval_iters
        if not (evaluation_possible(cfg.validation) and interval):
            return
        if not self._state.train_state.do_valid:
            if data is not None:
                raise TrainSettingsError(
                    f"valid_data_iterator: is passed with validation.eval_interval={interval}, but do_valid of the "
                    "counters is False, so it would never be read. Set state.train_state.do_valid=True on all ranks, "
                    "after a checkpoint is loaded; or pass no data."
                )
            return
        evaluation_batch(cfg)
        validation_sets(data, cfg.validation)
        if self._parts.train_data_iterator is not None and data is None:
            raise TrainSettingsError(
                f"valid_data_iterator: is None on a rank that reads training data, but validation.eval_interval="
                f"{interval} and eval_iters={eval_iters} require validations. Pass data, or set eval_iters=0."
            )

    def __call__(self, step: int) -> None:
        """Evaluate if a validation is due after this step. Collective then; raises what `evaluate` raises."""
        if not evaluation_due(self._state.cfg.validation, self._state.train_state):
            return
        with self._around(), checks_paused(self._parts.rerun_machine):
            losses = run_evaluation(
                self._forward_backward,
                self._events,
                groups=self._parts.pg_collection,
                hooks=self._hooks,
                kind="eval",
                stop_evaluation=self._stop_evaluation,
                non_loss=self._parts.non_loss,
            )
        if losses is not None:
            self._last_complete = step

    def validated(self, step: int) -> bool:
        """Return whether a validation after this step was completed."""
        return self._last_complete == step


def run_evaluation(
    forward_backward: ForwardBackwardRunner,
    events: EventDispatcher,
    *,
    groups: LossGroups | None,
    hooks: ForwardPreHooks,
    kind: EvaluationKind,
    stop_evaluation: StopEvaluation,
    non_loss: NonLossData | None,
    empty_cache: Callable[[], object] = torch.cuda.empty_cache,
) -> dict[str, float] | None:
    """Run `evaluate` with components that are already built; state and model are those of `events`. Collective.

    With `train.empty_unused_memory_level` of 1 or more, `empty_cache` releases unused device memory after each batch.

    Returns:
        Losses as of `evaluate`; None if there was nothing to evaluate, or the evaluation was stopped early.
    """
    state: GlobalState = events.state
    release = empty_cache if state.cfg.train.empty_unused_memory_level >= 1 else None
    sets = [
        validation_set
        for validation_set in validation_sets(forward_backward.data_iterator, state.cfg.validation)
        if validation_set.batches
    ]
    if not sets:
        return None
    start, _step_start, _step_end, end = _EVENTS[kind]
    counters, batch = state.train_state, evaluation_batch(state.cfg)
    count_at_end = (
        counters.consumed_valid_samples
        + sum(validation_set.batches for validation_set in sets) * batch.samples
    )
    non_loss = NonLossData() if non_loss is None else non_loss
    with hooks.paused(), _evaluation_mode(events.model), torch.no_grad():
        events(start)
        losses: dict[str, float] = {}
        complete = True
        for validation_set in sets:
            forward = EvaluationForward(
                forward_backward.with_data(validation_set.data()),
                batch=batch,
                keep=non_loss.repeats_batch and validation_set is sets[-1],
            )
            rows = _run_batches(
                forward,
                events,
                batches=validation_set.batches,
                kind=kind,
                stop_evaluation=stop_evaluation,
                after_batch=release,
            )
            if rows is None:
                losses, complete = {}, False
                counters.consumed_valid_samples = count_at_end  # as if every batch of every set had been read
                break
            suffix = f" {validation_set.name}" if validation_set.name else ""
            averages = _averages(*rows, groups=groups)
            losses.update({f"{name}{suffix}": loss for name, loss in averages.items() if loss is not None})
            _warn_undefined([f"{name}{suffix}" for name, loss in averages.items() if loss is None], kind=kind)
        if complete:  # `forward` is that of the last set
            non_loss.collect_and_process(forward, model=events.model, step=counters.step)
        events(end, total_loss_dict=losses if complete else None)
    return losses if complete else None


def _run_batches(
    forward_backward: EvaluationForward,
    events: EventDispatcher,
    *,
    batches: int,
    kind: EvaluationKind,
    stop_evaluation: StopEvaluation,
    after_batch: Callable[[], object] | None,
) -> tuple[list[str], Tensor | None] | None:
    """Return the K loss names and their sums and counts over the batches of a set, on this rank.

    Returns:
        Names and rows [sum, count], float64 [K, 2] on the device of the losses; no names and no rows on all but the
        last pipeline stage. None if the evaluation was stopped early.

    Raises:
        LossShapeError: batches report different losses, or a loss that cannot be averaged.
    """
    state: GlobalState = events.state
    _start, step_start, step_end, _end = _EVENTS[kind]
    names: list[str] = []
    rows = None
    for number in range(batches):
        if number and stop_evaluation():
            return None
        events(step_start)
        microbatches = forward_backward()
        if microbatches and microbatches[0]:
            batch_rows = sum_and_count(microbatches).double()  # a sum of many batches loses digits in float32
            if rows is not None and list(microbatches[0]) != names:
                raise LossShapeError(
                    f"losses: batch {number} of the evaluation reports {list(microbatches[0])}, the first one {names}, "
                    "so there is no average of each. Report the same names in the same order for all batches."
                )
            names = list(microbatches[0])
            rows = batch_rows if rows is None else rows + batch_rows
        state.train_state.consumed_valid_samples += forward_backward.batch.samples
        if after_batch is not None:
            after_batch()
        events(step_end)
    return names, rows


def _averages(names: list[str], rows: Tensor | None, *, groups: LossGroups | None) -> dict[str, float | None]:
    """Return the average of each loss over all data-parallel ranks; None if nothing was counted on any of them.

    Collective over `groups.dp_cp`; adds the other ranks to `rows` in place. One host synchronisation.
    """
    if rows is None:
        return {}
    if groups is not None:
        torch.distributed.all_reduce(rows, group=groups.dp_cp)
    sums = zip(names, rows.tolist(), strict=True)
    return {name: total / count if count else None for name, (total, count) in sums}


def _warn_undefined(names: Sequence[str], *, kind: EvaluationKind) -> None:
    """Warn of losses that are averages over no token."""
    if names:
        warnings.warn(
            f"{'validation' if kind == 'eval' else 'test'}: {', '.join(names)} is not defined, because none of the "
            "tokens is in the loss: loss_mask is 0 everywhere. Check that the samples have an answer within "
            "seq_length.",
            stacklevel=2,
        )


@contextmanager
def _evaluation_mode(model: Sequence[Any]) -> Iterator[None]:
    """Set each chunk to evaluation mode for the block, and back to the mode that it had."""
    modes = [chunk.training for chunk in model]
    for chunk in model:
        chunk.eval()
    try:
        yield
    finally:
        for chunk, training in zip(model, modes, strict=True):
            chunk.train(training)
