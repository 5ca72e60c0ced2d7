"""Evaluation of a model on global batches. Imports torch."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from mb_loop.callbacks import CallbackManager, EventDispatcher, EventName
from mb_loop.evaluation.non_loss import EvaluationForward, NonLossData
from mb_loop.evaluation.validation import validation_line, validation_sets
from mb_loop.rerun_machine import RerunMachine, checks_paused
from mb_loop.settings import GlobalState, evaluation_batch
from mb_loop.step.forward_backward import ForwardBackwardRunner, ParallelSetup
from mb_loop.step.hooks import forward_pre_hooks
from mb_loop.step.injection import ForwardStep, prepare_forward_step_func
from mb_loop.step.losses import LossGroups, sum_and_count
from mb_loop.step.schedule import ForwardBackward

EvaluationKind = Literal["eval", "test"]
_EVENTS: dict[EvaluationKind, tuple[EventName, EventName, EventName, EventName]] = {
    "eval": ("on_eval_start", "on_eval_step_start", "on_eval_step_end", "on_eval_end"),
    "test": ("on_test_start", "on_test_step_start", "on_test_step_end", "on_test_end"),
}

StopEvaluation = Callable[[], bool]
"""Called before each batch but the first, on all ranks. Returns whether to stop; must return the same on all ranks."""


def never_stop() -> bool:
    """Return False: evaluate all batches."""
    return False


def evaluate(  # noqa: PLR0913 (Megatron-Bridge's arguments, and the groups that it takes from global state)
    forward_step_func: ForwardStep,
    data_iterator: Any,
    model: Sequence[Any],
    global_state: GlobalState,
    *,
    forward_backward_func: ForwardBackward | None = None,
    pg_collection: LossGroups | None = None,
    p2p_communicator: Any = None,
    callbacks: CallbackManager | None = None,
    kind: EvaluationKind = "eval",
    stop_evaluation: StopEvaluation = never_stop,
    non_loss: NonLossData | None = None,
) -> dict[str, float]:
    """Average the losses of `validation.eval_iters` global batches, with the model in evaluation mode.

    Collective over all ranks of the model; one host synchronisation per set, at its end. Each batch is counted in
    `consumed_valid_samples`. An evaluation that is stopped early is counted as a complete one, so that a resumed run
    starts each validation set where an uninterrupted run would. The mode of each chunk and the forward pre-hooks are
    restored, also after an exception.

    Args:
        forward_step_func: a forward step with Megatron's contract; see `forward_backward_no_pipelining`.
        data_iterator: an iterator, a list with one per chunk, None on ranks that read no data; or `ValidationSet`s.
        model: model chunks of this rank.
        global_state: counters and settings.
        forward_backward_func: Megatron's schedule; None: `forward_backward_no_pipelining` of this package.
        pg_collection: losses are averaged over its `dp_cp` group.
        p2p_communicator: passed to the schedule together with `pg_collection`.
        callbacks: receive the events of `kind`.
        kind: "eval" or "test".
        stop_evaluation: ends the evaluation early. Its losses are discarded, because an average over fewer batches is
            not comparable.
        non_loss: data collected in addition to the losses, once at the end of an evaluation that was not stopped early.
            With several sets, data of the last set's last batch. None: losses only.

    Returns:
        Loss by name, or by "name set" with several sets. A loss over no token is not defined and left out, with a
        warning. Empty on all but the last pipeline stage, if there is nothing
        to evaluate, and if the evaluation was stopped early.

    Raises:
        BatchSizeError: the evaluation batch does not divide.
        DataExhaustedError: the data ended.
        ValidationSetError: the settings require validation sets, but a plain iterator was passed.
    """
    cfg = global_state.cfg
    parallel = ParallelSetup(
        forward_backward_func=forward_backward_func,
        pg_collection=pg_collection,
        p2p_communicator=p2p_communicator,
    )
    parallel.check(cfg, model)
    forward_backward = ForwardBackwardRunner(
        prepare_forward_step_func(forward_step_func, global_state),
        data_iterator=data_iterator,
        model=model,
        seq_length=cfg.model.seq_length,
        parallel=parallel,
    )
    manager = CallbackManager() if callbacks is None else callbacks
    events = EventDispatcher(manager=manager, state=global_state, model=model)
    return run_evaluation(
        forward_backward,
        events,
        groups=pg_collection,
        kind=kind,
        stop_evaluation=stop_evaluation,
        non_loss=non_loss,
    )


def run_evaluation(
    forward_backward: ForwardBackwardRunner,
    events: EventDispatcher,
    *,
    groups: LossGroups | None,
    kind: EvaluationKind,
    stop_evaluation: StopEvaluation = never_stop,
    non_loss: NonLossData | None = None,
    empty_cache: Callable[[], object] = torch.cuda.empty_cache,
) -> dict[str, float]:
    """Run `evaluate` with components that are already built; state and model are those of `events`.

    With `train.empty_unused_memory_level` of 1 or more, `empty_cache` releases unused device memory after each batch.
    """
    state: GlobalState = events.state
    release = empty_cache if state.cfg.train.empty_unused_memory_level >= 1 else None
    sets = [
        each for each in validation_sets(forward_backward.data_iterator, state.cfg.validation) if each.batches
    ]
    if not sets:
        return {}
    start, _, _, end = _EVENTS[kind]
    counters, batch = state.train_state, evaluation_batch(state.cfg)
    full_count = counters.consumed_valid_samples + sum(each.batches for each in sets) * batch.samples
    non_loss = NonLossData() if non_loss is None else non_loss
    with forward_pre_hooks(state.cfg, events.model).paused(), _evaluation_mode(events.model), torch.no_grad():
        events(start)
        losses: dict[str, float] = {}
        complete = True
        for each in sets:
            forward = EvaluationForward(
                forward_backward.with_data(each.data()),
                batch=batch,
                keep=non_loss.repeats_batch and each is sets[-1],
            )
            rows = _run_batches(
                forward,
                events,
                batches=each.batches,
                kind=kind,
                stop_evaluation=stop_evaluation,
                after_batch=release,
            )
            if rows is None:
                losses, complete = {}, False
                counters.consumed_valid_samples = full_count  # as if every batch had been read
                break
            suffix = f" {each.name}" if each.name else ""
            averages = _averages(*rows, groups=groups)
            losses.update({f"{name}{suffix}": loss for name, loss in averages.items() if loss is not None})
            _warn_undefined([f"{name}{suffix}" for name, loss in averages.items() if loss is None], kind=kind)
        if complete:
            non_loss.collect_and_process(forward, model=events.model, step=counters.step)
        events(end, total_loss_dict=losses if complete else None)
    return losses


def evaluate_and_print_results(  # noqa: PLR0913 (the arguments of evaluate, and the prefix)
    prefix: str,
    forward_step_func: ForwardStep,
    data_iterator: Any,
    model: Sequence[Any],
    global_state: GlobalState,
    *,
    write: Callable[[str], None] | None = print,
    forward_backward_func: ForwardBackward | None = None,
    pg_collection: LossGroups | None = None,
    p2p_communicator: Any = None,
    callbacks: CallbackManager | None = None,
    kind: EvaluationKind = "eval",
    stop_evaluation: StopEvaluation = never_stop,
    non_loss: NonLossData | None = None,
) -> str:
    """Evaluate and write the result as one line between dashes.

    Collective, like `evaluate`. Pass `write=None` on all ranks except one rank of the last pipeline stage.

    Returns:
        The line; empty if this rank has no losses.
    """
    losses = evaluate(
        forward_step_func,
        data_iterator,
        model,
        global_state,
        forward_backward_func=forward_backward_func,
        pg_collection=pg_collection,
        p2p_communicator=p2p_communicator,
        callbacks=callbacks,
        kind=kind,
        stop_evaluation=stop_evaluation,
        non_loss=non_loss,
    )
    if not losses:
        return ""
    line = validation_line(prefix, losses)
    if write is not None:
        dashes = "-" * len(line)
        write(f"{dashes}\n{line}\n{dashes}")
    return line


def evaluate_after_training(
    forward_step_func: ForwardStep,
    model: Sequence[Any],
    global_state: GlobalState,
    *,
    valid_data_iterator: Any = None,
    test_data_iterator: Any = None,
    validated: bool = False,
    rerun_machine: RerunMachine | None = None,
    **keywords: Any,
) -> tuple[str, str]:
    """Evaluate on the validation set and the test set, as `do_valid` and `do_test` of the state define.

    Collective. Call it after `train` returned the reason "finished", "early_stop" or "skip_train".

    Args:
        forward_step_func: see `evaluate`.
        model: model chunks of this rank.
        global_state: counters and settings; `do_valid` and `do_test` select the evaluations.
        valid_data_iterator: validation data; see `evaluate`.
        test_data_iterator: test data; see `evaluate`.
        validated: the last step is already validated; only the test runs.
        rerun_machine: paused meanwhile, so that nothing is repeated; None: there is none.
        **keywords: arguments of `evaluate_and_print_results`, without `kind`.

    Returns:
        The two lines; an empty string for an evaluation that did not run.
    """
    counters = global_state.train_state

    def line(name: str, data: Any, kind: EvaluationKind) -> str:
        prefix = f"iteration {counters.step} on {name} set"
        return evaluate_and_print_results(
            prefix, forward_step_func, data, model, global_state, kind=kind, **keywords
        )

    with checks_paused(rerun_machine):
        return (
            line("validation", valid_data_iterator, "eval") if counters.do_valid and not validated else "",
            line("test", test_data_iterator, "test") if counters.do_test else "",
        )


def _run_batches(
    forward_backward: EvaluationForward,
    events: EventDispatcher,
    *,
    batches: int,
    kind: EvaluationKind,
    stop_evaluation: StopEvaluation,
    after_batch: Callable[[], object] | None,
) -> tuple[list[str], Tensor | None] | None:
    """Return loss names and [sum, count] rows over all batches; None if the evaluation was stopped early."""
    state: GlobalState = events.state
    _, step_start, step_end, _ = _EVENTS[kind]
    names: list[str] = []
    rows = None
    for number in range(batches):
        if number and stop_evaluation():
            return None
        events(step_start)
        microbatches = forward_backward()
        if microbatches and microbatches[0]:
            names = list(microbatches[0])
            batch_rows = sum_and_count(microbatches)
            rows = batch_rows if rows is None else rows + batch_rows
        state.train_state.consumed_valid_samples += forward_backward.batch.samples
        if after_batch is not None:
            after_batch()
        events(step_end)
    return names, rows


def _averages(names: list[str], rows: Tensor | None, *, groups: LossGroups | None) -> dict[str, float | None]:
    """Return the average of each loss; None if nothing was counted on any rank."""
    if rows is None:
        return {}
    if groups is not None:
        torch.distributed.all_reduce(rows, group=groups.dp_cp)
    averages = zip(names, rows[:, 1].tolist(), (rows[:, 0] / rows[:, 1]).tolist(), strict=True)
    return {name: average if count else None for name, count, average in averages}


def _warn_undefined(names: Sequence[str], *, kind: EvaluationKind) -> None:
    if names:
        warnings.warn(
            f"{'validation' if kind == 'eval' else 'test'}: {', '.join(names)} is not defined, because none of the "
            "tokens is in the loss: loss_mask is 0 everywhere. Check that the samples have an answer within "
            "seq_length.",
            stacklevel=2,
        )


@contextmanager
def _evaluation_mode(model: Sequence[Any]) -> Iterator[None]:
    modes = [chunk.training for chunk in model]
    for chunk in model:
        chunk.eval()
    try:
        yield
    finally:
        for chunk, training in zip(model, modes, strict=True):
            chunk.train(training)
