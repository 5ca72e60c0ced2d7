"""Construction of the parts of a training loop from their common components. Imports torch."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from mb_loop.callbacks import CallbackManager, EventDispatcher, observed
from mb_loop.errors import DataExhaustedError, TrainSettingsError
from mb_loop.evaluation.evaluate import StopEvaluation, run_evaluation
from mb_loop.evaluation.non_loss import NonLossData
from mb_loop.evaluation.validation import evaluation_due, evaluation_possible, validation_sets
from mb_loop.maintenance.manual_gc import ManualGC
from mb_loop.rerun_machine import RerunMachine, checks_paused
from mb_loop.settings import GlobalState, evaluation_batch
from mb_loop.step.attention_logits import AttentionLogits
from mb_loop.step.forward_backward import ForwardBackwardRunner, ParallelSetup
from mb_loop.step.hooks import ForwardPreHooks
from mb_loop.step.injection import ForwardStep, prepare_forward_step_func
from mb_loop.step.microbatches import StepBatch
from mb_loop.step.mxfp8 import parameter_copy
from mb_loop.step.optimizers import Optimizer, Scheduler
from mb_loop.step.step import TrainStep
from mb_loop.train_loop import StepEndHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopAssembly:
    """Components that the parts of a training loop share, and the builders of these parts."""

    state: GlobalState
    model: Sequence[Any]
    optimizer: Optimizer
    scheduler: Scheduler | None
    parallel: ParallelSetup
    callbacks: CallbackManager
    hooks: ForwardPreHooks
    manual_gc: ManualGC
    rerun_machine: RerunMachine | None

    @property
    def evaluation_events(self) -> EventDispatcher:
        """Dispatcher of the events of evaluations, whose context has no optimizer."""
        return EventDispatcher(manager=self.callbacks, state=self.state, model=self.model)

    @property
    def events(self) -> EventDispatcher:
        """Dispatcher of the events of training."""
        return replace(self.evaluation_events, optimizer=self.optimizer, scheduler=self.scheduler)

    def forward_backward(
        self, forward_step_func: ForwardStep, train_data_iterator: Any
    ) -> ForwardBackwardRunner:
        """Return the forward-backward passes on training data, which the rerun machine can repeat."""
        machine = self.rerun_machine
        train_data_iterator = observed(train_data_iterator, self.events)
        if machine is not None:
            train_data_iterator = machine.begin(self.state.train_state.step, train_data_iterator)
        return ForwardBackwardRunner(
            prepare_forward_step_func(forward_step_func, self.state),
            data_iterator=train_data_iterator,
            model=self.model,
            seq_length=self.state.cfg.model.seq_length,
            parallel=self.parallel,
        )

    def train_step(
        self,
        forward_backward: ForwardBackwardRunner,
        events: EventDispatcher,
        *,
        attention_logits: AttentionLogits | None,
    ) -> TrainStep:
        """Return the training step."""
        cfg = self.state.cfg
        return TrainStep(
            forward_backward,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            groups=self.parallel.pg_collection,
            cfg=cfg,
            rerun_machine=self.rerun_machine,
            after_zeroing=parameter_copy(cfg, self.optimizer, hooks=self.hooks),
            before_update=lambda: events("on_before_optimizer_step"),
            attention_logits=attention_logits,
        )

    def discard(self, data_iterator: Any) -> Callable[[StepBatch], None]:
        """Return a function that consumes the microbatches of a step from the iterator of every chunk.

        The function raises DataExhaustedError if the data ends within the step.
        """
        iterators = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        end = object()

        def discard(batch: StepBatch) -> None:
            machine = self.rerun_machine
            with nullcontext() if machine is None else machine.discarding(data_iterator):
                for iterator in iterators:
                    for _ in range(batch.num_microbatches if iterator is not None else 0):
                        if next(iterator, end) is end:
                            raise DataExhaustedError(
                                "data iterator: ended within a step of train.iterations_to_skip. Provide more data."
                            )

        return discard

    def evaluation(
        self,
        forward_backward: ForwardBackwardRunner,
        *,
        stop_evaluation: StopEvaluation,
        non_loss: NonLossData,
        reads_data: bool,
    ) -> StepEndHandler:
        """Return the function that evaluates after a step if an evaluation is due.

        Args:
            forward_backward: passes on validation data.
            stop_evaluation: called before each batch but the first.
            non_loss: data collected in addition to the losses.
            reads_data: this rank reads training data, and therefore has to read validation data.

        Raises:
            TrainSettingsError: there is no validation data on a rank that reads training data.
            BatchSizeError: the evaluation batch does not divide.
            ValidationSetError: the settings require validation sets, but a plain iterator was passed.
        """
        cfg, counters = self.state.cfg, self.state.train_state
        if counters.do_valid and evaluation_possible(cfg.validation) and cfg.validation.eval_interval:
            evaluation_batch(cfg)  # raises now rather than at the first evaluation
            validation_sets(forward_backward.data_iterator, cfg.validation)
            if reads_data and forward_backward.data_iterator is None:
                raise TrainSettingsError(
                    f"valid_data_iterator: is None on a rank that reads training data, but validation.eval_interval="
                    f"{cfg.validation.eval_interval} and eval_iters={cfg.validation.eval_iters} require validations. "
                    "Pass data, or set eval_iters=0."
                )
        events = self.evaluation_events

        def run(step: int) -> None:
            interval = cfg.validation.eval_interval
            if interval and step % interval == 0 and evaluation_due(cfg.validation, counters):
                with self.manual_gc.around_evaluation(), checks_paused(self.rerun_machine):
                    run_evaluation(
                        forward_backward,
                        events,
                        groups=self.parallel.pg_collection,
                        kind="eval",
                        stop_evaluation=stop_evaluation,
                        non_loss=non_loss,
                    )

        return run
