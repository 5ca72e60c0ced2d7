"""The loop itself: what happens in a turn, and in which order. Nothing else; no torch.

Each part is a Protocol of what the loop asks of it, so that the order can be tested with fakes.
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
    """CUDA graphs: see `GraphCapture`."""

    def before_step(self, step: int) -> None:
        """Capture when it is time."""


class HookController(Protocol):
    """Parameter-gather hooks: see `ForwardPreHooks`."""

    def after_step(self, *, skipped: bool) -> None:
        """A step was made."""


class SaveController(Protocol):
    """Save decisions: see `CheckpointSaver`."""

    def poll(self) -> None:
        """Look after background writes."""

    def save(self, step: int, *, again: bool = False) -> None:
        """Write a lasting checkpoint, once a step unless `again`."""

    def after_step(self, step: int, *, leaving: bool) -> None:
        """Save what is due."""


class ExitController(Protocol):
    """Exit decisions: see `ExitConditions`."""

    def decide(self, step: int) -> LoopExit | None:
        """Decide after each step, on all ranks."""


class StepEndHandler(Protocol):
    """Something that happens after steps, at intervals of its own."""

    def __call__(self, step: int) -> None:
        """Do what is due after this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLoop:
    """The parts of one run."""

    train_iters: int
    skip_steps: frozenset[int]
    state: TrainState
    plan: BatchPlan
    step: Callable[[int, StepBatch], StepResult]
    """Make the step of this number."""
    discard: Callable[[StepBatch], None]
    """Use up the data of a step."""
    events: EventDispatcher
    hooks: HookController
    graphs: GraphController
    flops: Callable[[StepResult], float]
    """Operations of a step, over all ranks."""
    evaluate: StepEndHandler
    maintenance: StepEndHandler
    saves: SaveController
    exits: ExitController


def run_train_loop(loop: TrainLoop) -> LoopExit:
    """Run until the last step, or until an exit condition holds. All ranks run the same turns.

    A turn of the skip list uses up its data, fires no events and trains nothing; saves and exits are decided as ever.
    """
    state = loop.state
    previous = None
    while state.step < loop.train_iters:
        loop.saves.poll()
        batch = loop.plan.at(state.consumed_train_samples)
        if previous is not None and batch != previous:
            loop.saves.save(state.step)  # the last step with the smaller batch
        previous = batch

        if state.step + 1 in loop.skip_steps:
            loop.discard(batch)
            count(state, batch, trained=False)
        else:
            loop.graphs.before_step(state.step)
            loop.events("on_train_step_start")
            result = loop.step(state.step + 1, batch)
            if result.should_checkpoint:
                loop.saves.save(state.step, again=True)  # with the rerun machine's state in it
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
    """Advance the counters by one step."""
    state.step += 1
    state.consumed_train_samples += batch.samples
    state.skipped_train_samples += batch.dropped if trained else batch.dropped + batch.samples


def _rerun_exit(step: int, code: int) -> LoopExit:
    message = f"stopped at step {step + 1}, which does not count: its result was rejected (exit code {code})"
    return LoopExit(reason="rerun", message=message, exit_code=code)
