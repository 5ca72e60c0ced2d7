"""Execution of a run whose parts are built: train, evaluate, print the summary. Imports torch and megatron.

`mb_trainer.run.build` builds the parts and calls `Run.train`. `Run` adds callbacks, monitors and metrics; the steps are
those of `mb_loop.train`.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

from mb_checkpoint import LoadedCheckpoint, RunCheckpointer
from mb_checkpoint.trainer_api import hugging_face_copies, position_callbacks
from mb_data import RunData
from mb_launch import barrier, default_store, is_launched
from mb_launch.trainer_api import stop_was_requested
from mb_loop import (
    EarlyStopping,
    NonLossData,
    TrainOutcome,
    TrainParts,
    build_attention_logits,
    evaluate_after_training,
    progress_recorders,
    train,
)
from mb_loop.trainer_api import (
    LossInspection,
    MegatronRerunMachine,
    build_layer_graphs,
    captured_schedule,
    inspected_forward_step,
    wait_for_device,
)
from mb_metrics import MetricsOutput, RunProfilers, RunRecorders, RunSummary, record_run
from mb_metrics.trainer_api import Bar, RankConsole, location_lines
from mb_models import TrainingModel
from mb_models.trainer_api import ForwardStep
from mb_plan import PlanError, flops_per_token, predicted_speed, read_adapters, read_shape
from mb_resilience import StopRequests, watch_stop_requests
from mb_resilience.trainer_api import (
    RunMonitors,
    StragglerDetectors,
    announce_stop,
    build_straggler_detectors,
    restart_fields,
)
from mb_trainer.run.complete_run import EVALUATE, missing_evaluation
from mb_trainer.run.data import batch_form
from mb_trainer.run.folder_locks import FolderLocks
from mb_trainer.run.preflight import first_gpu
from mb_trainer.run.pretrained import EXPORT
from mb_trainer.run.settle import Job
from mb_trainer.run.state import GlobalState
from mb_trainer.run.user_code import UserCode

COMPLETE = ("finished", "early_stop")
"""Reasons for the end of training after which no step remains."""


def announce_request(name: str) -> None:
    """Print that a signal has arrived, unless the launcher ends this rank because another one failed.

    The launcher ends ranks by SIGTERM. SIGINT from a terminal reaches a rank before the launcher can mark the request.
    """
    if name == "SIGINT" or stop_was_requested(os.environ):
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
        summary = RunSummary(wait_for_device=wait_for_device)
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
        config, sizes = self.job.config, self.data.sizes
        # Read before this start is recorded. Of a run that stopped early, whose last step has no other sign of its end.
        missing = None if self.early_stopping is None else missing_evaluation(self.job)
        with ExitStack() as stack:
            # First, and so closed last: a signal that arrives while metrics are written does not end the process.
            stops = stack.enter_context(self.stop_requests())
            stragglers = stack.enter_context(self.straggler_detectors())
            recorders = stack.enter_context(self.recorders(stragglers))
            non_loss = stack.enter_context(self.non_loss_data())
            total, done = config.train.train_iters or 0, self.state.train_state.step
            bar = stack.enter_context(self.console.progress("training", total, done=done))
            parts = replace(
                self.parts(),
                forward_step_func=stragglers.wrap_forward_step(
                    self.forward_step(inspect_loss=self.inspection.inspect)
                ),
                train_data_iterator=stragglers.wrap_data(self.data.train),
                callbacks=self.callbacks(summary, locks, bar=bar, stragglers=stragglers, recorders=recorders),
                checkpointer=None if config.checkpoint.save is None else self.checkpointer,
                from_non_persistent=self.loaded.non_persistent,
                stop_requested=stops.stop_requested,
                duration_stop_requested=stops.duration_stop_requested,
                straggler_stop_requested=stragglers.stop_requested,
                stop_evaluation=stops.stop_evaluation,
                non_loss=non_loss,
                tokens_per_sample=None if sizes is None else sizes.tokens,
                flops=recorders.metrics.flops,
                cuda_graphs=build_layer_graphs(config, self.training_model),
                attention_logits=build_attention_logits(
                    config.model, self.training_model.chunks, groups=self.training_model.groups
                ),
            )
            outcome = train(parts, self.state)
            # A run that had stopped early when it started was evaluated then.
            if outcome.reason == "finished" or (outcome.reason == "early_stop" and outcome.step > done):
                # Without the timers of slow ranks and the checks of losses, which belong to steps of training.
                parts = replace(
                    parts,
                    forward_step_func=self.forward_step(),
                    callbacks=[
                        summary,
                        *recorders.callbacks,
                        *self.code.callbacks,
                        *self.monitors.callbacks,
                    ],
                )
                # Metrics and summary print the losses.
                evaluate_after_training(parts, self.state, validated=outcome.validated, write=None)
                if stops.evaluation_stopped:
                    # The run is complete: the same command does not evaluate it again.
                    self.console.print(
                        f"evaluation after training: given up, because the run was to stop; {EVALUATE}"
                    )
            elif outcome.reason == "early_stop" and missing is not None:
                self.console.print(missing)
        return outcome

    def evaluate_only(self, summary: RunSummary) -> TrainOutcome:
        """Evaluate the loaded weights; write nothing but the log. Collective."""
        parts = replace(self.parts(), callbacks=[summary, *self.code.callbacks, *self.monitors.callbacks])
        # With validation.skip_train, `train` checks the parts and makes no step.
        outcome = train(parts, self.state)
        evaluate_after_training(parts, self.state, write=self.console.print)
        return outcome

    def parts(self) -> TrainParts:
        """Return the parts that an evaluation needs, too."""
        return TrainParts(
            forward_step_func=self.forward_step(),
            model=self.training_model.chunks,
            optimizer=self.training_model.optimizer,
            scheduler=self.training_model.scheduler,
            train_data_iterator=self.data.train,
            valid_data_iterator=self.data.valid,
            test_data_iterator=self.data.test,
            rerun_machine=self.rerun_machine,
            **captured_schedule(self.job.config, self.training_model),
        )

    def callbacks(
        self,
        summary: RunSummary,
        locks: FolderLocks | None,
        *,
        bar: Bar,
        stragglers: StragglerDetectors,
        recorders: RunRecorders,
    ) -> list[object]:
        """Return the callbacks of training. At each event they are called in this order."""
        checkpoint, dataset, world = self.job.config.checkpoint, self.job.config.dataset, self.job.world
        log = self.console.print
        return [
            # A deleted run folder is made again before anything is written to it.
            *([] if locks is None else [locks]),
            # Before the recorders, which read the times of the step that these have measured.
            *stragglers.callbacks,
            summary,
            *bar.callbacks,
            *recorders.callbacks,
            # What follows a checkpoint, once it is recorded.
            *progress_recorders(self.state, world=world, print_line=log),
            *hugging_face_copies(checkpoint, command=EXPORT, ranks=world, log=log),
            *position_callbacks(dataset.dataloader_save, rank=world.rank, log=log),
            # Before early stopping and the code of the user, which may end the run: the best step is known by then.
            *([] if checkpoint.best_metric is None else [self.checkpointer]),
            *([] if self.early_stopping is None else [self.early_stopping]),
            # After ours: code of the user finds the step recorded, and an exception of it loses no row.
            *self.code.callbacks,
            # The work of all callbacks before belongs to the step whose time is watched. A profiler starts after it, so
            # that its start does not count as a part of the step that it shows.
            *self.monitors.callbacks,
            *self.profilers.attach(self.training_model.chunks),
            # Last: it ends the run if a loss is not finite, and the step with this loss is recorded by then.
            *self.inspection.callbacks,
        ]

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

    def _adapted_flops(self) -> float | None:
        """Return the FLOPs of a token of a model with adapters; None: it has none, or what they train is not known."""
        config, sizes = self.job.config, self.data.sizes
        if config.peft is None:
            return None
        try:
            shape = read_shape(config.model, vocab_size=self.training_model.vocab_size)
            length = config.model.seq_length if sizes is None else sizes.length_counts
            parts = flops_per_token(
                shape, seq_length=length, adapters=read_adapters(config.peft, config.model)
            )
        except PlanError:  # the recorder warns of frozen weights
            return None
        return sum(parts.values())

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
            process_start=job.started,
            more_sinks=self.code.sinks,
        )
        return record_run(
            job.config,
            self.training_model,
            output=output if job.world.is_logging_rank else None,
            start_step=self.state.train_state.step,
            sample_lengths=None if self.data.sizes is None else self.data.sizes.length_counts,
            flops=self._adapted_flops(),
            step_values=stragglers.step_values,
            print_line=self.console.detail,
        )
