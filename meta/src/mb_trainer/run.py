"""Execution of a run whose parts are built: train, evaluate, print the summary. Imports torch and megatron."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import CheckpointManager, SavedCheckpoint
from mb_launch import barrier
from mb_loop import (
    AttentionLogits,
    Callback,
    CallbackManager,
    TimeoutAfterFirstStep,
    TrainOutcome,
    evaluate_after_training,
    should_disable_forward_pre_hook,
    train,
)
from mb_loop.hooks import ForwardPreHooks
from mb_loop.mcore import MegatronRerunMachine
from mb_trainer.checkpointing import Saves
from mb_trainer.console import Voice
from mb_trainer.data import Data, packs
from mb_trainer.families import Family, ForwardStep
from mb_trainer.graphs import graphs_of_layers, in_one_graph
from mb_trainer.instruments import Instruments
from mb_trainer.job import Job
from mb_trainer.measuring import Measured
from mb_trainer.memory_report import MemoryReport
from mb_trainer.mimo_training import Modules
from mb_trainer.positions import keep_positions
from mb_trainer.progress import ProgressLog
from mb_trainer.recording import EventRecorder, MetricsRecorder, ProgressBar
from mb_trainer.rerunning import evaluating, loss_inspection
from mb_trainer.run_folder import EventLog, LastRow, last_row
from mb_trainer.state import GlobalState
from mb_trainer.stops import Stops, ignore_late, never, signal_watcher
from mb_trainer.stragglers import Stragglers, look_for_stragglers
from mb_trainer.summary import Summary
from mb_trainer.trainee import Trainee
from mb_trainer.watching import Watch


def begin(events: EventLog, job: Job, *, step: int, before: LastRow | None) -> None:
    """Write the start or resume event: its duration, and the last step recorded by the previous process."""
    known: dict[str, Any] = {"recipe": job.name, "seconds": time.time() - psutil.Process().create_time()}
    known |= job.beginning
    if step and before is not None:
        known |= {"previous_step": before.step, "previous_time": before.time}
    if step and job.changed:
        known["changes"] = {path: list(values) for path, values in job.changed.items()}
    events.write("resume" if step else "start", step=step, **known)


def nothing(event: str, **fields: object) -> None:
    """Write no event: another rank does."""


def announce_stop(name: str) -> None:
    """Report immediately that the signal has arrived; the current step is finished first. Safe in a handler."""
    os.write(1, f"\n{name}: stopping after this step (Ctrl-C again: at once)\n".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Parts of a run, ready to train."""

    job: Job
    voice: Voice
    groups: ProcessGroupCollection
    stored: Any
    """Process groups, or `Places`, by which checkpoints are written."""
    modules: Modules | None
    """Modules with per-module parallelism; None: one model."""
    family: Family
    trainee: Trainee
    instruments: Instruments
    data: Data
    state: GlobalState
    manager: CheckpointManager
    reruns: MegatronRerunMachine | None
    watch: Watch

    def train(self, callbacks: Sequence[object]) -> TrainOutcome:
        """Train, evaluate, and print the summary."""
        summary = Summary(tokens_per_sample=None if self.data.sizes is None else self.data.sizes.tokens)
        self.watch.loaded(self.manager, self.state)
        if self.job.config.validation.skip_train:
            outcome = self.evaluate_only(summary, callbacks)
        else:
            outcome = self.train_and_evaluate(summary, callbacks)
        for line in summary.lines(
            outcome,
            folder=self.job.folder,
            checkpoints=self.job.config.checkpoint.save,
            resume_command=self.job.resume_command,
        ):
            self.voice.say(line)
        barrier()
        return outcome

    def train_and_evaluate(self, summary: Summary, callbacks: Sequence[object]) -> TrainOutcome:
        """Train, record metrics and events, and evaluate at the end."""
        config, counters = self.job.config, self.state.train_state
        events = EventLog(self.job.folder.events)
        own: list[Callback] = [summary]
        with ExitStack() as stack:
            if self.job.resume_command is not None:
                stack.callback(ignore_late, config.train.exit_signal)
            announce = announce_stop if self.job.world.is_logging_rank else None
            watcher = stack.enter_context(signal_watcher(config.train, announce=announce))
            stops = Stops(watcher, config.train, start_time=self.state.start_time, world=self.job.world)
            before = last_row(self.job.folder.metrics)
            measured = self.measured()
            stack.enter_context(measured.metrics)
            total = config.train.train_iters or 0
            bar = stack.enter_context(self.voice.progress("training", total, done=counters.step))
            saves = self.saves(events, measured)
            stragglers = stack.enter_context(self.stragglers(measured))
            recorder = MetricsRecorder(
                measured,
                decoupled_rate=config.optimizer.decoupled_lr is not None,
                extra=lambda: {**saves.values, **stragglers.values()},
            )
            recorders: list[Callback] = [recorder]
            own += [ProgressBar(bar), *self.after_first_step(), *stragglers.callbacks()]
            if self.job.world.is_logging_rank:
                begin(events, self.job, step=counters.step, before=before)
                recorders.append(stack.enter_context(EventRecorder(events)))
            own += [*recorders, *self.memory_report()]
            heard = CallbackManager([*own, *callbacks, *self.watch.callbacks()])
            self.instruments.watch(self.trainee.chunks, heard)
            outcome = train(
                *stragglers.timed(self.trained()),
                stragglers.reading(self.data.train),
                self.data.valid,
                self.state,
                callbacks=heard,
                checkpointer=None if config.checkpoint.save is None else self.watch.saves(saves),
                stop_requested=stops.wish,
                duration_stop_requested=stops.time,
                stop_evaluation=stops.leave_evaluation,
                straggler_stop_requested=stragglers.wish,
                rerun_machine=self.reruns,
                cuda_graphs=graphs_of_layers(self.job.config, self.trainee, groups=self.groups),
                flops=measured.operations,
                attention_logits=self.attention_logits(),
                **self.schedule(),
            )
            if outcome.reason == "finished":
                heard = CallbackManager([summary, *recorders, *callbacks, *self.watch.callbacks()])
                self.evaluate(heard, summary, stops=stops)
        return outcome

    def evaluate_only(self, summary: Summary, callbacks: Sequence[object]) -> TrainOutcome:
        """Evaluate the loaded weights; write nothing but the log."""
        heard = CallbackManager([summary, *callbacks, *self.watch.callbacks()])
        outcome = train(*self.trained(), None, None, self.state, callbacks=heard, **self.schedule())
        self.evaluate(heard, summary)
        return outcome

    @property
    def forward_step(self) -> Callable[..., ForwardStep]:
        """Factory of the forward step, called as (inspect_loss=)."""
        if self.modules:
            return self.modules.forward_step
        step = self.family.forward_step
        return partial(step, packed=True) if packs(self.job.config) else step

    def trained(self) -> tuple[Any, list[Any], Any, Any]:
        """Return forward step, model, optimizer and scheduler for the training loop."""
        inspect = loss_inspection(self.job.config.rerun_state_machine, self.reruns)
        trainee = self.trainee
        return (
            self.forward_step(inspect_loss=inspect),
            trainee.chunks,
            trainee.optimizer,
            trainee.scheduler,
        )

    def evaluate(self, heard: CallbackManager, summary: Summary, *, stops: Stops | None = None) -> None:
        """Evaluate on validation data, unless the last step already did, and on test data. Collective."""
        with evaluating(self.reruns):
            evaluate_after_training(
                self.forward_step(),
                self.trainee.chunks,
                self.state,
                valid_data_iterator=self.data.valid,
                test_data_iterator=self.data.test,
                validated=summary.validated == self.state.train_state.step,
                callbacks=heard,
                write=self.voice.say,
                stop_evaluation=stops.leave_evaluation if stops else never,
                **self.schedule(),
            )
        if stops is not None and stops.gave_up:
            self.voice.say("evaluation after training: given up, because the run was to stop")

    def after_first_step(self) -> list[Callback]:
        """Return the callback that sets the shorter timeout of collectives after the first step, if configured."""
        seconds = self.job.config.dist.distributed_timeout_seconds_after_init
        return [] if seconds is None else [TimeoutAfterFirstStep(seconds)]

    def attention_logits(self) -> AttentionLogits | None:
        """Return the monitor that reads attention logits and clips weights by them, if enabled. Collective."""
        model = self.job.config.model
        if not (model.qk_clip or model.log_max_attention_logit):
            return None
        return AttentionLogits(self.trainee.chunks, groups=self.groups, clip=model.qk_clip)

    def stragglers(self, measured: Measured) -> AbstractContextManager[Stragglers]:
        """Return a context manager that detects slow ranks while it is open. Collective."""
        device = next(self.trainee.chunks[0].parameters()).device
        return look_for_stragglers(
            self.job.config,
            device=device,
            voice=self.voice,
            operations=measured.operations,
            token_file=None if self.job.unwritable else self.job.folder.path / "straggler_token",
        )

    def memory_report(self) -> list[Callback]:
        """Return the callback that reports the run's memory, unless metrics are disabled."""
        config = self.job.config
        if config.logger.skip_train_metrics_log:
            return []
        return [MemoryReport(config, chunks=self.trainee.chunks, groups=self.groups, say=self.voice.say)]

    def schedule(self) -> dict[str, Any]:
        """Return Megatron's schedule for this parallelism, with its groups and pipeline communication."""
        if self.modules:
            return dict(self.modules.schedule)
        sizes = self.groups.pp.size(), self.job.config.model.virtual_pipeline_model_parallel_size
        return {
            "forward_backward_func": in_one_graph(
                get_forward_backward_func(*sizes), self.job.config, self.trainee.transformer
            ),
            "pg_collection": self.groups,
            "p2p_communicator": P2PCommunicator(self.groups.pp, self.trainee.transformer),
        }

    def saves(self, events: EventLog, measured: Measured) -> Saves:
        """Return the checkpointer, which also reports the outcome of each save."""
        ddp = self.job.config.ddp
        hooks = ForwardPreHooks(
            self.trainee.chunks,
            used=should_disable_forward_pre_hook(
                ddp.use_megatron_fsdp, ddp.use_distributed_optimizer, ddp.overlap_param_gather
            ),
        )
        return Saves(
            self.manager,
            state=self.state,
            trainee=self.trainee,
            groups=self.stored,
            say=self.voice.say,
            events=events.write if self.job.world.is_logging_rank else nothing,
            pause=measured.saving,
            whole=hooks.paused,
            data=self.data.train,
            kept=partial(self.keep, measured),
            reruns=self.reruns,
            progress=self.progress(),
        )

    def keep(self, measured: Measured, saved: SavedCheckpoint) -> None:
        """Upload a checkpoint to the trackers that store files, and copy data positions to the configured folder."""
        measured.keep_checkpoint(saved.path)
        folder = self.job.config.dataset.dataloader_save
        if folder is not None and self.job.world.rank == 0:
            try:
                keep_positions(saved.path, step=saved.step, folder=folder)
            except OSError as error:
                self.voice.say(f"warning: dataset.dataloader_save: no position of step {saved.step}: {error}")

    def progress(self) -> ProgressLog | None:
        """Return the writer of progress.txt, on the logging rank, if it is enabled."""
        if not (self.job.config.logger.log_progress and self.job.world.is_logging_rank):
            return None
        world_size = self.job.world.world_size
        return ProgressLog(self.state, world_size=world_size, environment=os.environ, say=self.voice.say)

    def measured(self) -> Measured:
        """Return the metrics of this rank, starting after the steps already done."""
        return Measured(
            self.job,
            voice=self.voice,
            groups=self.groups,
            chunks=self.trainee.chunks,
            device=next(self.trainee.chunks[0].parameters()).device,
            step=self.state.train_state.step,
            vocab_size=self.trainee.vocab_size,
            sizes=self.data.sizes,
            norms=self.modules,
        )
