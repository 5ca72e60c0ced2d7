"""Evaluate a model on some global batches. Needs torch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from mb_loop.callbacks import CallbackManager, EventDispatcher, EventName
from mb_loop.forward_backward import ForwardBackwardRunner, ParallelSetup
from mb_loop.hooks import forward_pre_hooks
from mb_loop.injection import ForwardStep, prepare_forward_step_func
from mb_loop.losses import LossGroups, sum_and_count
from mb_loop.mxfp8 import do_nothing
from mb_loop.non_loss import EvaluationForward, NonLossData
from mb_loop.schedule import ForwardBackward
from mb_loop.settings import GlobalState, evaluation_batch
from mb_loop.validation import validation_line, validation_sets

EvaluationKind = Literal["eval", "test"]
_EVENTS: dict[EvaluationKind, tuple[EventName, EventName, EventName, EventName]] = {
    "eval": ("on_eval_start", "on_eval_step_start", "on_eval_step_end", "on_eval_end"),
    "test": ("on_test_start", "on_test_step_start", "on_test_step_end", "on_test_end"),
}

StopEvaluation = Callable[[], bool]
"""Asked before each batch but the first, on all ranks; answers alike on all of them."""


def never_stop() -> bool:
    """Give it all the time it takes."""
    return False


def evaluate(  # noqa: PLR0913 (the seed's arguments, and the groups that it found in globals)
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

    Collective over all ranks of the model; one synchronisation with the host per set, at its end. Each batch counts
    into `consumed_valid_samples`; an evaluation that the time ended counts as a whole one, so that a resume starts each
    of several sets where a run with more time would. The mode of each chunk and the forward pre-hooks are restored,
    also after an error.

    Args:
        forward_step_func: Megatron's contract; see `forward_backward_no_pipelining`.
        data_iterator: an iterator, a list with one per chunk, None on ranks that read no data; or `ValidationSet`s.
        model: the chunks.
        global_state: counters and settings.
        forward_backward_func: Megatron's schedule; None: the plain one.
        pg_collection: losses are averaged over its dp_cp.
        p2p_communicator: given to the schedule together with `pg_collection`.
        callbacks: hear the events of `kind`.
        kind: "eval" or "test".
        stop_evaluation: ends the evaluation early; what was evaluated by then is thrown away, as an average over fewer
            batches is no number to compare.
        non_loss: what to collect beside the losses, once an evaluation, at its end; nothing where the time was up. Of
            several sets the last one's batch is taken. None: losses only.

    Returns:
        Loss per name, with several sets per "name set"; empty when there is nothing to evaluate, when the time was up,
        and except on the last pipeline stage.

    Raises:
        BatchSizeError: the evaluation batch does not divide.
        DataExhaustedError: the data ended.
        ValidationSetError: the settings ask for sets, and plain data was given.
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
    """Do what `evaluate` says, with the parts put together already; state and model are those of `events`.

    From `train.empty_unused_memory_level` 1 on `empty_cache` gives unused device memory back, after each batch.
    """
    state: GlobalState = events.state
    release = empty_cache if state.cfg.train.empty_unused_memory_level >= 1 else do_nothing
    sets = [
        each for each in validation_sets(forward_backward.data_iterator, state.cfg.validation) if each.batches
    ]
    if not sets:
        return {}
    start, _, _, end = _EVENTS[kind]
    counters, batch = state.train_state, evaluation_batch(state.cfg)
    whole_end = counters.consumed_valid_samples + sum(each.batches for each in sets) * batch.samples
    non_loss = NonLossData() if non_loss is None else non_loss
    with forward_pre_hooks(state.cfg, events.model).paused(), _evaluation_mode(events.model), torch.no_grad():
        events(start)
        losses: dict[str, float] = {}
        whole = True
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
                losses, whole = {}, False
                counters.consumed_valid_samples = whole_end
                break
            suffix = f" {each.name}" if each.name else ""
            losses.update({f"{name}{suffix}": loss for name, loss in _averages(*rows, groups=groups).items()})
        if whole:
            non_loss.collect_and_process(forward, model=events.model, step=counters.step)
        events(end, total_loss_dict=losses if whole else None)
    return losses


def evaluate_and_print_results(  # noqa: PLR0913 (as evaluate, and the prefix)
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
    """Evaluate, and write the result as one line between dashes.

    Collective, like `evaluate`. Pass `write=None` on all ranks but one of the last pipeline stage.

    Returns:
        The line; empty where there are no losses.
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
    **keywords: Any,
) -> tuple[str, str]:
    """Evaluate on the validation set and on the test set, where the state says that there is one, and write both lines.

    Collective. Call it where `train` has "finished", or did nothing because of `validation.skip_train`.

    Args:
        forward_step_func: see `evaluate`.
        model: the chunks.
        global_state: its `do_valid` and `do_test` decide.
        valid_data_iterator: data, as for `evaluate`.
        test_data_iterator: the same, for the test.
        validated: the last step has been validated already; only the test is left.
        **keywords: those of `evaluate_and_print_results`, without `kind`.

    Returns:
        The two lines; empty where there was nothing.
    """
    counters = global_state.train_state

    def line(what: str, data: Any, kind: EvaluationKind) -> str:
        prefix = f"iteration {counters.step} on {what} set"
        return evaluate_and_print_results(
            prefix, forward_step_func, data, model, global_state, kind=kind, **keywords
        )

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
    after_batch: Callable[[], object],
) -> tuple[list[str], Tensor | None] | None:
    """Return names and [sum, count] rows of all batches; None when the time was up before the last."""
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
        after_batch()
        events(step_end)
    return names, rows


def _averages(names: list[str], rows: Tensor | None, *, groups: LossGroups | None) -> dict[str, float]:
    if rows is None:
        return {}
    if groups is not None:
        torch.distributed.all_reduce(rows, group=groups.dp_cp)
    return dict(zip(names, (rows[:, 0] / rows[:, 1]).tolist(), strict=True))


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
