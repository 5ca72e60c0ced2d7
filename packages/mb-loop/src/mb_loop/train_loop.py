"""Training loop: the order of operations within each iteration. Does not import torch.

`TrainLoop` holds the components, `run_train_loop` calls them. `mb_loop.training.train` builds the components, and does
the work before the first and after the last iteration, such as the final checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mb_loop.exits.outcome import LoopExit
from mb_loop.step.microbatches import BatchPlan, StepBatch

if TYPE_CHECKING:
    from mb_loop.callbacks import EventDispatcher
    from mb_loop.exits.exit_conditions import ExitConditions
    from mb_loop.graphs.capture import GraphCapture
    from mb_loop.maintenance.checkpoint_saver import CheckpointSaver
    from mb_loop.state import TrainState
    from mb_loop.step.hooks import ForwardPreHooks
    from mb_loop.step.result import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTask:
    """Work after each trained step whose number is a multiple of `interval`."""

    interval: int
    run: Callable[[int], object]
    """Called with the number of finished steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLoop:
    """Components of the training loop of one run."""

    train_iters: int
    """Number of the last step."""
    skip_steps: frozenset[int]
    """One-based numbers of the steps whose data is consumed without training (`train.iterations_to_skip`)."""
    state: TrainState
    """Counters, which the loop advances."""
    plan: BatchPlan
    """Batch of each step."""
    step: Callable[[int, StepBatch], StepResult]
    """Train one step. Called as (one-based step number, batch)."""
    discard: Callable[[StepBatch], None]
    """Consume the data of a step in `skip_steps`."""
    events: EventDispatcher
    hooks: ForwardPreHooks
    """Parameter-gather hooks, enabled after the first step that changed the weights."""
    graphs: GraphCapture | None = None
    """None: no graphs are captured."""
    flops: Callable[[StepResult], float]
    """Floating-point operations of a step, summed over all ranks."""
    evaluate: Callable[[int], None]
    """Evaluate if it is due after this step; see `ScheduledEvaluation`."""
    maintenance: Sequence[PeriodicTask] = ()
    """Periodic work such as garbage collection; see `maintenance_tasks`."""
    saves: CheckpointSaver
    exits: ExitConditions


def run_train_loop(loop: TrainLoop) -> LoopExit:
    """Run training iterations until the last step, an exit condition, or a step that the rerun machine rejects.

    All ranks run the same iterations. A step in `skip_steps` consumes its data; it fires `on_train_step_skipped` alone,
    and has no validation or maintenance. Saves and exits are decided as after any other step. A rejected step is not
    counted and ends the loop at once: no exit condition is evaluated, and only the rerun machine requests a save. After
    the last step the reason is always "finished", whatever exit condition holds.
    """
    state = loop.state
    previous = None
    while state.step < loop.train_iters:
        # Once in each iteration, skipped steps included: checkpointers may let ranks agree by the number of the poll.
        loop.saves.poll()
        batch = loop.plan.at(state.consumed_train_samples)
        if previous is not None and batch != previous:
            # The batch size changes: save the last step with the previous size, as Megatron does during ramp-up.
            loop.saves.save(state.step)
        previous = batch

        if state.step + 1 in loop.skip_steps:
            loop.discard(batch)
            advance_counters(state, batch, trained=False)
            loop.events("on_train_step_skipped")
        else:
            if loop.graphs is not None:
                loop.graphs.before_step()
            loop.events("on_train_step_start")
            result = loop.step(state.step + 1, batch)
            if result.should_checkpoint:
                # The step is not counted yet, so this checkpoint is that of the previous step. One that exists is
                # overwritten: the state of the rerun machine must be in it.
                loop.saves.save(state.step, again=True)
            if result.exit_code is not None:
                return _rerun_exit(state.step, result.exit_code)
            # Before anything reads the weights: what this step changed is gathered by the hooks, and a pause for an
            # evaluation or a save only gathers if they are enabled.
            loop.hooks.after_step(skipped=result.skipped)
            advance_counters(state, batch, trained=True)
            state.floating_point_operations_so_far += int(loop.flops(result))
            loop.events("on_train_step_end", result=result)
            loop.evaluate(state.step)
            for task in loop.maintenance:
                if state.step % task.interval == 0:
                    task.run(state.step)

        # The exit is decided first, because the step at which a run ends is saved even if no interval is due. Skipped
        # steps are checked, too: the ranks agree on a stop by the number of the step, and none may be left out.
        leave = loop.exits.decide(state.step)
        loop.saves.after_step(state.step, leaving=leave is not None)
        if leave is not None and state.step < loop.train_iters:
            return leave
    return LoopExit(reason="finished", message=f"finished all {loop.train_iters} steps")


def advance_counters(state: TrainState, batch: StepBatch, *, trained: bool) -> None:
    """Advance the counters of `state` by one step, whose data was `trained` on or discarded.

    Samples that rounding down leaves out (`batch.dropped`) count as skipped, but not as consumed.
    """
    state.step += 1
    state.consumed_train_samples += batch.samples
    state.skipped_train_samples += batch.dropped if trained else batch.dropped + batch.samples


def _rerun_exit(step: int, code: int) -> LoopExit:
    message = f"stopped at step {step + 1}, which does not count: its result was rejected (exit code {code})"
    return LoopExit(reason="rerun", message=message, exit_code=code)
