"""Execution of a run whose parts are built: train, evaluate, print the summary. Imports torch and megatron.

`mb_trainer.run.build` builds the parts and calls `Run.train`. `Run` adds callbacks, monitors and metrics; the steps are
those of `mb_loop.train`.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import psutil

from mb_checkpoint import LoadedCheckpoint, RunCheckpointer, position_callbacks
from mb_checkpoint.save.exported_weights import hugging_face_copies
from mb_data import RunData
from mb_launch import barrier, default_store, is_launched
from mb_launch.ranks.failures import stop_was_requested
from mb_loop import (
    CallbackManager,
    EarlyStopping,
    StepResult,
    TrainOutcome,
    build_attention_logits,
    evaluate_after_training,
    progress_recorders,
    train,
)
from mb_loop.device import wait_for_device
from mb_loop.evaluation.evaluate import never_stop
from mb_loop.evaluation.non_loss import NonLossData
from mb_loop.graphs.megatron import build_layer_graphs, captured_schedule
from mb_loop.mcore import LossInspection, MegatronRerunMachine
from mb_loop.step.inspected_step import inspected_forward_step
from mb_metrics import MetricsOutput, RunProfilers, RunRecorders, RunSummary, record_run
from mb_metrics.run.rank_console import RankConsole
from mb_metrics.run.summary import location_lines
from mb_models.families import ForwardStep
from mb_models.training.setup import TrainingModel
from mb_plan.time.prediction import predicted_speed
from mb_resilience import StopRequests, watch_stop_requests
from mb_resilience.monitors import RunMonitors
from mb_resilience.restarts.arguments import restart_fields
from mb_resilience.stops.signals import announce_stop
from mb_resilience.stragglers.detectors import StragglerDetectors, build_straggler_detectors
from mb_trainer.run.data import batch_form
from mb_trainer.run.folder_locks import FolderLocks
from mb_trainer.run.machine import first_gpu
from mb_trainer.run.pretrained import EXPORT
from mb_trainer.run.settle import Job
from mb_trainer.run.state import GlobalState
from mb_trainer.run.user_code import UserCode

COMPLETE = ("finished", "early_stop")
"""Reasons for the end of training after which no step remains."""


def announce_request(name: str) -> None:
    """Print that a signal has arrived, unless the launcher ends this rank because another one failed."""
    if stop_was_requested(os.environ):
        announce_stop(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run whose model, data and checkpointer are built and loaded."""

    job: Job
    console: RankConsole
    training_model: TrainingModel
    profilers: RunProfilers
    data: RunData
    state: GlobalState
    checkpointer: RunCheckpointer
    loaded: LoadedCheckpoint
    rerun_machine: MegatronRerunMachine | None
    early_stopping: EarlyStopping | None
    inspection: LossInspection
    monitors: RunMonitors

    def train(self, locks: FolderLocks | None) -> TrainOutcome:
        """Train and evaluate, or evaluate only (`validation.skip_train`); print the summary. Collective.

        `locks`: those on the folders of the run; None on ranks without.
        """
        tokens = None if self.data.sizes is None else self.data.sizes.tokens
        summary = RunSummary(tokens_per_sample=tokens, wait_for_device=wait_for_device)
        if self.loaded.from_persistent_storage:
            self.monitors.checkpoint_loaded()
        if self.job.config.validation.skip_train:
            outcome = self.evaluate_only(summary)
        else:
            outcome = self.train_and_evaluate(summary, locks)
        self.console.print(outcome.message)
        if outcome.reason != "skip_train":
            resume_command = None if outcome.reason in COMPLETE else self.job.options.resume_command
            folder, checkpoints = self.job.folder, self.job.config.checkpoint.save
            metrics = (folder.metrics, folder.tensorboard)
            where = location_lines(metrics, checkpoints=checkpoints, resume_command=resume_command)
            for line in (*summary.lines(), *where):
                self.console.print(line)
        barrier()
        return outcome

    def train_and_evaluate(self, summary: RunSummary, locks: FolderLocks | None) -> TrainOutcome:
        """Train, record metrics and events, and evaluate after the last step. Collective."""
        with ExitStack() as stack:
            stops = stack.enter_context(self.stop_requests())
            stragglers = stack.enter_context(self.straggler_detectors())
            recorders = stack.enter_context(self.recorders(stragglers))
            non_loss = stack.enter_context(self.non_loss_data())
            total, done = self.job.config.train.train_iters or 0, self.state.train_state.step
            bar = stack.enter_context(self.console.progress("training", total, done=done))
            # The order matters: see `StragglerDetectors.callbacks` and `RunMonitors.callbacks`.
            manager = CallbackManager(
                [
                    *([] if locks is None else [locks]),
                    *stragglers.callbacks,
                    summary,
                    *bar.callbacks,
                    *recorders.callbacks,
                    *progress_recorders(self.state, world=self.job.world, print_line=self.console.print),
                    *hugging_face_copies(
                        self.job.config.checkpoint,
                        command=EXPORT,
                        ranks=self.job.world,
                        log=self.console.print,
                    ),
                    *position_callbacks(
                        self.job.config.dataset.dataloader_save,
                        rank=self.job.world.rank,
                        log=self.console.print,
                    ),
                    *([] if self.job.config.checkpoint.best_metric is None else [self.checkpointer]),
                    *([] if self.early_stopping is None else [self.early_stopping]),
                    *self.code.callbacks,
                    *self.monitors.callbacks,
                    *self.profilers.attach(self.training_model.chunks),
                    *self.inspection.callbacks,
                ]
            )
            outcome = self.run_loop(
                manager, stops=stops, stragglers=stragglers, flops=recorders.metrics.flops, non_loss=non_loss
            )
            # a run that had stopped early when it started was evaluated then
            if outcome.reason == "finished" or (outcome.reason == "early_stop" and outcome.step > done):
                after = [summary, *recorders.callbacks, *self.code.callbacks, *self.monitors.callbacks]
                self.evaluate(CallbackManager(after), summary, stops=stops, non_loss=non_loss)
        return outcome

    def run_loop(
        self,
        manager: CallbackManager,
        *,
        stops: StopRequests,
        stragglers: StragglerDetectors,
        flops: Callable[[StepResult], float],
        non_loss: NonLossData,
    ) -> TrainOutcome:
        """Run the training loop with all callbacks and stop sources. Collective."""
        config, training_model = self.job.config, self.training_model
        forward_step, model, optimizer, scheduler = self.train_arguments()
        return train(
            stragglers.wrap_forward_step(forward_step),
            model,
            optimizer,
            scheduler,
            stragglers.wrap_data(self.data.train),
            self.data.valid,
            self.state,
            process_non_loss_data_func=non_loss.process,
            non_loss_data_func=non_loss.collect,
            non_loss_writer=non_loss.writer,
            callbacks=manager,
            checkpointer=None if config.checkpoint.save is None else self.checkpointer,
            stop_requested=stops.stop_requested,
            duration_stop_requested=stops.duration_stop_requested,
            stop_evaluation=stops.stop_evaluation,
            straggler_stop_requested=stragglers.stop_requested,
            rerun_machine=self.rerun_machine,
            cuda_graphs=build_layer_graphs(config, training_model),
            flops=flops,
            attention_logits=build_attention_logits(
                config.model, training_model.chunks, groups=training_model.groups
            ),
            **captured_schedule(config, training_model),
        )

    def evaluate_only(self, summary: RunSummary) -> TrainOutcome:
        """Evaluate the loaded weights; write nothing but the log. Collective."""
        manager = CallbackManager([summary, *self.code.callbacks, *self.monitors.callbacks])
        # With validation.skip_train, `train` checks its arguments and returns; evaluation brings its own data.
        outcome = train(
            *self.train_arguments(),
            None,
            None,
            self.state,
            callbacks=manager,
            **captured_schedule(self.job.config, self.training_model),
        )
        self.evaluate(manager, summary)
        return outcome

    @property
    def code(self) -> UserCode:
        """Code of the user."""
        return self.job.options.code

    def forward_step(self, *, inspect_loss: Callable[[Any], None] | None = None) -> ForwardStep:
        """Return the user's forward step, or that of the model's family, for the form of the dataset's batches.

        `inspect_loss` receives the loss of each microbatch.
        """
        if self.code.forward_step is not None:
            own: ForwardStep = inspected_forward_step(
                self.code.forward_step, self.state, inspect_loss=inspect_loss
            )
            return own
        options = batch_form(self.job.config)
        if self.code.compute_metrics is not None:
            options["compute_metrics"] = self.code.compute_metrics
        return self.training_model.forward_step(inspect_loss=inspect_loss, **options)

    def train_arguments(self) -> tuple[Any, list[Any], Any, Any]:
        """Return the first four arguments of `mb_loop.train`: forward step, model, optimizer and scheduler."""
        training_model = self.training_model
        return (
            self.forward_step(inspect_loss=self.inspection.inspect),
            training_model.chunks,
            training_model.optimizer,
            training_model.scheduler,
        )

    def evaluate(
        self,
        manager: CallbackManager,
        summary: RunSummary,
        *,
        stops: StopRequests | None = None,
        non_loss: NonLossData | None = None,
    ) -> None:
        """Evaluate on validation data, unless the last step already did, and on test data. Collective.

        `stops`: requests that end the evaluation early; None: it cannot be stopped.
        """
        evaluate_after_training(
            self.forward_step(),
            self.training_model.chunks,
            self.state,
            valid_data_iterator=self.data.valid,
            test_data_iterator=self.data.test,
            validated=summary.validated == self.state.train_state.step,
            rerun_machine=self.rerun_machine,
            callbacks=manager,
            write=None
            if stops
            else self.console.print,  # while `stops` are watched, metrics and summary print them
            stop_evaluation=stops.stop_evaluation if stops else never_stop,
            non_loss=non_loss,
            **captured_schedule(self.job.config, self.training_model),
        )
        if stops is not None and stops.evaluation_stopped:
            self.console.print("evaluation after training: given up, because the run was to stop")

    def non_loss_data(self) -> AbstractContextManager[NonLossData]:
        """Return a context manager that opens TensorBoard's writer for the user's data, on the logging rank."""
        writes = self.job.world.is_logging_rank
        return NonLossData.with_tensorboard(
            process=self.code.process_non_loss_data,
            collect=self.code.non_loss_data,
            folder=self.job.config.logger.tensorboard_dir if writes else None,
        )

    def stop_requests(self) -> AbstractContextManager[StopRequests]:
        """Return a context manager that receives signals and the duration limit as stop requests while it is open."""
        return watch_stop_requests(
            self.job.config.train,
            world=self.job.world,
            store=default_store(self.job.world),
            start_time=self.state.start_time,
            launched=is_launched(os.environ),
            process_ends=self.job.options.process_ends,
            announce=announce_request,
        )

    def straggler_detectors(self) -> AbstractContextManager[StragglerDetectors]:
        """Return a context manager that detects slow ranks while it is open. Collective."""
        config = self.job.config
        return build_straggler_detectors(
            world=self.job.world,
            straggler=config.straggler,
            nvrx_straggler=config.nvrx_straggler,
            device=self.training_model.device,
            log_interval=config.logger.log_interval,
            token_file=None if self.job.unwritable_reason else self.job.folder.path / "straggler_token",
            log=self.console.print,
        )

    def recorders(self, stragglers: StragglerDetectors) -> AbstractContextManager[RunRecorders]:
        """Return a context manager that writes metrics and events of the next steps while it is open. Collective.

        The metrics of the straggler detectors are recorded with each step.
        """
        job = self.job
        changes = {path: list(values) for path, values in job.changed_settings.items()}
        code = {"code": self.code.names} if self.code.names else {}
        speed = predicted_speed(
            job.config.sections(),
            gpu=first_gpu(job.options.environment),
            world_size=job.world.world_size,
            vocab_size=self.training_model.vocab_size,
        )
        output = MetricsOutput(
            folder=job.folder.path,
            run_config=job.config.to_dict(),
            config_file=job.folder.run_config,
            stream=self.console,
            description={
                "recipe": job.options.name,
                "world_size": job.world.world_size,
                **job.status.start_fields,
                "set_by_user": list(job.user_paths),
                **code,
                **speed,
                **restart_fields(job.attempt),
            },
            resume_description={"changes": changes} if changes else {},
            process_start=psutil.Process().create_time(),
            more_sinks=self.code.sinks,
        )
        return record_run(
            job.config,
            self.training_model,
            output=output if job.world.is_logging_rank else None,
            start_step=self.state.train_state.step,
            sample_sizes=self.data.sizes,
            step_values=stragglers.step_values,
            print_line=self.console.detail,
        )
