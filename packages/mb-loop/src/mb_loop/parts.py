"""Parts of a run: the record that `train` and `evaluate` take. Imports torch."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.nn import Module

from mb_loop.callbacks import CallbackManager, EventDispatcher, normalize_callbacks
from mb_loop.evaluation.non_loss import NonLossData
from mb_loop.exits.exit_conditions import StopEvaluation, StopRequested
from mb_loop.graphs.capture import CudaGraphs
from mb_loop.maintenance.checkpoint_saver import Checkpointer
from mb_loop.rerun_machine import RerunMachine
from mb_loop.settings import GlobalState
from mb_loop.step.attention_logits import AttentionLogits
from mb_loop.step.forward_backward import ForwardBackwardRunner, require_parallel_parts
from mb_loop.step.forward_step import ForwardStep, inspected_forward_step
from mb_loop.step.losses import LossGroups
from mb_loop.step.optimizers import Scheduler
from mb_loop.step.result import StepResult, no_flops
from mb_loop.step.schedule import ForwardBackward


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainParts:
    """Parts of a run. Only the first three are needed; `dataclasses.replace` exchanges a part.

    Settings and counters are not among them: they are the state, the second argument of `train` and `evaluate`.
    """

    forward_step_func: ForwardStep
    """`(iterator, model)` or `(state, iterator, model)`; see `forward_backward_no_pipelining`."""

    model: Any
    """Model chunks of this rank, one without interleaved pipelining. A module becomes a list with it."""

    optimizer: Any = None
    """Megatron's or torch's optimizer; None: the model is only evaluated."""

    scheduler: Scheduler | None = None
    """Megatron's (advances by samples) or torch's (advances by steps); None: a constant learning rate."""

    train_data_iterator: Any = None
    """An iterator, a list with one iterator per chunk, or None on ranks that read no data."""

    valid_data_iterator: Any = None
    """The same for validation, or `ValidationSet`s."""

    test_data_iterator: Any = None
    """The same for the test after training."""

    forward_backward_func: ForwardBackward | None = None
    """Megatron's schedule; None: `forward_backward_no_pipelining` of this package."""

    pg_collection: LossGroups | None = None
    """Losses are averaged over its `dp_cp` group; required with several data-parallel ranks."""

    p2p_communicator: Any = None
    """Passed to the schedule together with `pg_collection`."""

    callbacks: Any = ()
    """Callbacks in order, or a single one; they become a `CallbackManager`. A manager keeps its `user_state`."""

    checkpointer: Checkpointer | None = None
    """Writes checkpoints; None: nothing is saved, and `checkpoint.save` must not be set."""

    from_non_persistent: bool = False
    """Whether the counters are those of a non-persistent checkpoint. Then the last step is also saved if it was made
    before this call."""

    stop_requested: StopRequested | None = None
    """Stop request source, called once after each step; must return the same on all ranks. None: with
    `train.exit_signal_handler` the loop handles `train.exit_signal` itself, and stops after the step in which any rank
    receives it. That costs one gloo collective per step and no device synchronisation. If a source is passed as well,
    the loop handles the signal unless the signal already has a handler."""

    straggler_stop_requested: StopRequested | None = None
    """Stop request source for slow ranks; None: there is none."""

    duration_stop_requested: StopRequested | None = None
    """Stop request source for `train.exit_duration_in_mins`; None: ranks compare their clocks by a collective."""

    stop_evaluation: StopEvaluation | None = None
    """Called before each batch of an evaluation but the first; must return the same on all ranks. True abandons the
    evaluation, so that a stop request takes effect soon. None: during training, stop when the duration has passed,
    unless there is a `duration_stop_requested`."""

    non_loss: NonLossData | None = None
    """Data collected by each evaluation in addition to the losses; None: losses only."""

    rerun_machine: RerunMachine | None = None
    """Repeats steps with suspicious results, such as `mb_loop.mcore.MegatronRerunMachine`. None: none is repeated."""

    attention_logits: AttentionLogits | None = None
    """Reads the largest attention logit after each optimizer step and clips weights (`qk_clip`). None: neither."""

    cuda_graphs: CudaGraphs | None = None
    """CUDA graphs of layers, captured after their warm-up; None: no graphs."""

    tokens_per_sample: float | None = None
    """Average tokens of a training sample, if samples differ in length; None: each has `model.seq_length` tokens."""

    flops: Callable[[StepResult], float] = no_flops
    """Floating-point operations of a step over all ranks; summed in `floating_point_operations_so_far`."""

    clock: Callable[[], float] = time.time
    """Time in seconds; the clock that `start_time` of the state was read from."""

    def __post_init__(self) -> None:
        """Accept a module as `model`, and callbacks without a manager."""
        model = [self.model] if isinstance(self.model, Module) else self.model
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "callbacks", normalize_callbacks(self.callbacks) or CallbackManager())

    def events(self, state: GlobalState) -> EventDispatcher:
        """Return the dispatcher of the events of training to the callbacks."""
        return replace(self.evaluation_events(state), optimizer=self.optimizer, scheduler=self.scheduler)

    def evaluation_events(self, state: GlobalState) -> EventDispatcher:
        """Return the dispatcher of the events of an evaluation, whose context has no optimizer."""
        return EventDispatcher(manager=self.callbacks, state=state, model=self.model)

    def forward_backward(self, state: GlobalState, data_iterator: Any) -> ForwardBackwardRunner:
        """Return the forward and backward passes on data.

        Raises:
            ParallelSetupError: a parallel run has no group or no schedule.
        """
        require_parallel_parts(
            state.cfg.data_parallel_size,
            self.model,
            schedule=self.forward_backward_func,
            groups=self.pg_collection,
        )
        return ForwardBackwardRunner(
            inspected_forward_step(self.forward_step_func, state),
            data_iterator=data_iterator,
            model=self.model,
            seq_length=state.cfg.model.seq_length,
            schedule=self.forward_backward_func,
            groups=self.pg_collection,
            p2p_communicator=self.p2p_communicator,
        )
