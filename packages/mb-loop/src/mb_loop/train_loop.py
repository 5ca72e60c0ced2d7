"""Order of operations within one training iteration. Does not import torch.

Each component is a Protocol with the methods that the loop calls, so that the order can be tested with fakes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mb_loop.callbacks import EventDispatcher
from mb_loop.microbatches import BatchPlan, StepBatch
from mb_loop.outcome import LoopExit
from mb_loop.result import StepResult
from mb_loop.state import TrainState


class GraphController(Protocol):
    """CUDA graph capture; see `GraphCapture`."""

    def before_step(self, step: int) -> None:
        """Capture the graphs if they are due. `step`: finished steps."""


class HookController(Protocol):
    """Parameter-gather hooks; see `ForwardPreHooks`."""

    def after_step(self, *, skipped: bool) -> None:
        """Update the hooks after an optimizer step."""


class SaveController(Protocol):
    """Checkpoint schedule; see `CheckpointSaver`."""

    def poll(self) -> None:
        """Finalize background saves that are ready."""

    def save(self, step: int, *, again: bool = False) -> None:
        """Write a persistent checkpoint, at most once per step unless `again` is set."""

    def after_step(self, step: int, *, leaving: bool) -> None:
        """Save if a checkpoint is due. `leaving`: the loop ends after this step."""


class ExitController(Protocol):
    """Exit decision; see `ExitConditions`."""

    def decide(self, step: int) -> LoopExit | None:
        """Return the reason to leave the loop, or None. Called after each step, on all ranks."""


class StepEndHandler(Protocol):
    """Callable that runs after each step and decides by itself whether it is due."""

    def __call__(self, step: int) -> None:
        """Run the work that is due after this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLoop:
    """Components of one training run."""

    train_iters: int
    skip_steps: frozenset[int]
    state: TrainState
    plan: BatchPlan
    step: Callable[[int, StepBatch], StepResult]
    """Train one step. Called as (step number, batch)."""
    discard: Callable[[StepBatch], None]
    """Consume the data of a step without training on it."""
    events: EventDispatcher
    hooks: HookController
    graphs: GraphController
    flops: Callable[[StepResult], float]
    """Floating-point operations of a step, summed over all ranks."""
    evaluate: StepEndHandler
    maintenance: StepEndHandler
    saves: SaveController
    exits: ExitController


def run_train_loop(loop: TrainLoop) -> LoopExit:
    """Run training iterations until the last step or until an exit condition holds.

    All ranks run the same iterations. An iteration listed in `skip_steps` consumes its data, fires no events and does
    not train; saving and leaving are decided as after any other iteration.
    """
    state = loop.state
    previous = None
    while state.step < loop.train_iters:
        loop.saves.poll()
        batch = loop.plan.at(state.consumed_train_samples)
        if previous is not None and batch != previous:
            # Save the last step with the previous batch size, as Megatron does during ramp-up.
            loop.saves.save(state.step)
        previous = batch

        if state.step + 1 in loop.skip_steps:
            loop.discard(batch)
            count(state, batch, trained=False)
        else:
            loop.graphs.before_step(state.step)
            loop.events("on_train_step_start")
            result = loop.step(state.step + 1, batch)
            if result.should_checkpoint:
                # Overwrites a checkpoint of this step: the rerun machine's state must be in it.
                loop.saves.save(state.step, again=True)
            if result.exit_code is not None:
                return _rerun_exit(state.step, result.exit_code)
            loop.hooks.after_step(skipped=result.skipped)
            count(state, batch, trained=True)
            state.floating_point_operations_so_far += int(loop.flops(result))
            loop.events("on_train_step_end", result=result)
            loop.evaluate(state.step)
            loop.maintenance(state.step)

        leave = loop.exits.decide(state.step)
        loop.saves.after_step(state.step, leaving=leave is not None)
        if leave is not None and state.step < loop.train_iters:
            return leave
    return LoopExit(reason="finished", message=f"finished all {loop.train_iters} steps")


def count(state: TrainState, batch: StepBatch, *, trained: bool) -> None:
    """Advance the counters of `state` by one step."""
    state.step += 1
    state.consumed_train_samples += batch.samples
    state.skipped_train_samples += batch.dropped if trained else batch.dropped + batch.samples


def _rerun_exit(step: int, code: int) -> LoopExit:
    message = f"stopped at step {step + 1}, which does not count: its result was rejected (exit code {code})"
    return LoopExit(reason="rerun", message=message, exit_code=code)
