"""A run from its process groups to its end: build data and model, load the checkpoint, train.

Importing this module imports torch and Megatron Core.
"""

import os
import signal
import time
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import (
    CheckpointManager,
    DefaultCheckpointManager,
    RunCheckpointer,
    create_checkpoint_manager,
    stateful_callbacks,
)
from mb_checkpoint.trainer_api import (
    on_rank_zero,
    resumed_step,
    verify_last_checkpoint_on_all_ranks,
    warn_without_position,
)
from mb_config import non_default_values
from mb_config.trainer_api import megatron_arguments
from mb_data import DataRanks, RunDatasets, RunLoaders, Tokenizer, prepare_tokenizer
from mb_data.trainer_api import changed_data_files
from mb_host.trainer_api import irreproducibility_reasons, read_arithmetic
from mb_launch import barrier, default_store, pick_device
from mb_launch.trainer_api import ERROR_FOLDER, timed_failure
from mb_loop import CallbackContext, CallbackManager, TrainOutcome, TrainState
from mb_loop.trainer_api import (
    MegatronRerunMachine,
    build_rerun_machine,
    early_stopping,
    graph_resources,
    loss_inspection,
    wrapping_stream,
)
from mb_metrics import RunProfilers, start_profilers
from mb_metrics.trainer_api import Bar, RankConsole, captured_records, captured_warnings
from mb_models import ModuleGroups, TrainingModel
from mb_models.trainer_api import data_groups, padding_note
from mb_overlap import start_user_buffers
from mb_resilience import IgnoreSignals
from mb_resilience.trainer_api import RunMonitors, build_monitors
from mb_trainer.config import ConfigContainer
from mb_trainer.errors import RankLeftError
from mb_trainer.run.complete_run import report_complete
from mb_trainer.run.data import batch_settings, build_datasets
from mb_trainer.run.data_checks import kept_by_run
from mb_trainer.run.folder_locks import locked_folders
from mb_trainer.run.model import build_model, model_groups, select_layers
from mb_trainer.run.pretrained import save_assets
from mb_trainer.run.settle import Job, compare_with_storage
from mb_trainer.run.state import GlobalState
from mb_trainer.run.train import Run


def run(job: Job, *, console: RankConsole) -> TrainOutcome:
    """Train a run whose configuration has passed all checks. Collective over the world."""
    config = job.config
    device = pick_device(job.world, external_mapping=config.dist.external_gpu_device_mapping)
    with ExitStack() as stack, timed_failure():
        stack.enter_context(nullcontext() if console.is_logging_rank else captured_warnings(console))
        stack.enter_context(captured_records(console, config.logger))
        stack.enter_context(graph_resources(config))
        store = None if job.attempt is None else job.attempt.store
        groups = stack.enter_context(model_groups(job.world, config, device=device, store=store))
        stack.callback(console.close)
        # A complete run ends here, without a model. On all ranks, because one that builds would wait for the others.
        last = verify_last_checkpoint_on_all_ranks(
            config.checkpoint,
            train_iters=config.train.train_iters or 0,
            seems_complete=job.status.state == "complete",
        )
        if last is not None:
            return report_complete(job, last.path, console)
        # before the model is built: other settings than those of the run, and a second trainer, are refused at once
        job = compare_with_storage(job, on_rank_zero)
        locks = stack.enter_context(locked_folders(job, alert=partial(alert, console)))
        monitors = stack.enter_context(run_monitors(job, console))
        state = GlobalState(cfg=config, train_state=TrainState(do_train=True))
        stack.callback(state.close)
        CallbackManager(job.options.code.callbacks).fire(
            "on_data_init_start", CallbackContext(state=state, model=[])
        )
        parts = build(
            job, groups=groups, device=device, state=state, monitors=monitors, console=console, stack=stack
        )
        stack.callback(parts.data.close)
        open_folder(job, console)
        began = time.time()
        try:
            return parts.train(locks)
        except BaseException as error:
            for line in changed_data_files(since=began):
                error.add_note(f"dataset: {line}. Restore it, and start again: the run resumes.")
            console.log(traceback.format_exc())
            if isinstance(error, SystemExit) and job.world.world_size > 1:
                raise RankLeftError(
                    f"rank {job.world.rank}: left the run by SystemExit({error.code!r}), and the other ranks would "
                    "wait for it. Raise another exception to end the run as failed, or return from the callback."
                ) from error
            raise


def build(
    job: Job,
    *,
    groups: ProcessGroupCollection | ModuleGroups,
    device: torch.device,
    state: GlobalState,
    monitors: RunMonitors,
    console: RankConsole,
    stack: ExitStack,
) -> Run:
    """Build tokenizer, datasets, model and checkpointer, load the checkpoint, and open the data at its position.

    Collective over the world. Datasets are built before the model, so that an invalid one fails early. The checkpoint
    manager is closed with `stack`.
    """
    config = job.config
    tokenizer = state.tokenizer = shared_tokenizer(config, console)
    readers = data_groups(groups)
    datasets = build_datasets(config, tokenizer=tokenizer, pg_collection=readers, log=console.print)
    manager = open_manager(config, tokenizer, stack)
    profilers = run_profilers(job)
    training_model = wrapped_model(
        job, groups=groups, tokenizer_vocab_size=tokenizer.vocab_size, device=device
    )
    report_model(job, training_model, console)
    rerun_machine = build_rerun_machine(config.rerun_state_machine)
    stopping = early_stopping(config.train)
    loaders = data_loaders(config, datasets, ranks=DataRanks.of(readers), console=console)
    checkpointer = run_checkpointer(
        manager,
        state,
        training_model,
        train_data_iterator=loaders.external,
        rerun_machine=rerun_machine,
        callbacks=[*([] if stopping is None else [stopping]), *job.options.code.callbacks],
        console=console,
    )
    loaded = checkpointer.load(dataloader_load=config.dataset.dataloader_load)
    if config.peft is not None and loaded.source != "nothing":
        training_model.start_adapters(config.peft, resumed=loaded.step > 0)
        console.print(f"weights of the base model: {config.checkpoint.pretrained_checkpoint}")
    # ckpt_step selects the checkpoint of this start only: the next one resumes from the newest
    config.checkpoint.ckpt_step = None
    return Run(
        job=job,
        console=console,
        training_model=training_model,
        profilers=profilers,
        # opened last: the position is in the counters that the load has restored
        data=loaders.resume(state.train_state),
        state=state,
        checkpointer=checkpointer,
        loaded=loaded,
        rerun_machine=rerun_machine,
        early_stopping=stopping,
        inspection=loss_inspection(config.rerun_state_machine, rerun_machine),
        monitors=monitors,
    )


def open_manager(config: ConfigContainer, tokenizer: Tokenizer, stack: ExitStack) -> CheckpointManager:
    """Return the checkpoint manager, which saves the tokenizer with each checkpoint; `stack` closes the default one."""
    manager = create_checkpoint_manager(
        config.checkpoint, write_assets=partial(save_assets, config, tokenizer), log_outcomes=False
    )
    if isinstance(manager, DefaultCheckpointManager):
        stack.callback(manager.close)
    return manager


def run_monitors(job: Job, console: RankConsole) -> AbstractContextManager[RunMonitors]:
    """Return the monitors of this rank: section reports to a launcher, hang reports, simulated faults. Collective."""
    config = job.config
    return build_monitors(
        world=job.world,
        ft=config.ft,
        dist=config.dist,
        store=default_store(job.world),
        folder=None if job.unwritable_reason else job.folder.path,
        state_folder=config.checkpoint.save or job.folder.path,
        asynchronous_saves=config.checkpoint.async_save,
        seed=config.rng.seed,
        log=console.print,
        alert=partial(alert, console),
    )


def alert(console: RankConsole, text: str) -> None:
    """Print a text of this rank at once; a launcher of local ranks shows the stderr of the logging rank only."""
    console.alert(text)
    if ERROR_FOLDER in os.environ and not console.is_logging_rank:
        print(text, flush=True)


def run_profilers(job: Job) -> RunProfilers:
    """Start the profilers and the tensor inspection, which must exist before the model is built."""
    config = job.config
    return start_profilers(
        config.profiling,
        config.tensor_inspect,
        folder=job.folder.path,
        rank=job.world.rank,
        save=config.checkpoint.save,
        loaded_step=0 if config.tensor_inspect is None else resumed_step(config.checkpoint),
    )


def wrapped_model(
    job: Job,
    *,
    groups: ProcessGroupCollection | ModuleGroups,
    tokenizer_vocab_size: int,
    device: torch.device,
) -> TrainingModel:
    """Build the model and its optimizer, with what overlap and CUDA graphs need before."""
    config = job.config
    layers = select_layers(config.model, device)
    start_user_buffers(config.model, micro_batch_size=config.train.micro_batch_size or 1)
    with wrapping_stream(config.model):
        return build_model(
            config,
            groups=groups,
            layers=layers,
            tokenizer_vocab_size=tokenizer_vocab_size,
            device=device,
            code=job.options.code,
        )


def report_model(job: Job, training_model: TrainingModel, console: RankConsole) -> None:
    """Print model and device, why the run is not bitwise reproducible on a CPU, and the ranks of each module."""
    world, device = job.world.world_size, training_model.device
    processes = "1 process" if world == 1 else f"{world} processes"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    adapters = "" if job.config.peft is None else " without adapters"
    model = f"{training_model.parameters / 1e6:.1f} M parameters{adapters}, {training_model.layers.reason}"
    console.print(f"{job.options.name}: {model}, {processes} on {name}; run folder {job.folder.path}")
    if device.type == "cpu":
        for reason in irreproducibility_reasons(read_arithmetic()):
            console.print(f"warning: this run cannot be repeated bit for bit. {reason}")
    if training_model.modules is not None:
        console.print(training_model.modules.describe())


def data_loaders(
    config: ConfigContainer, datasets: RunDatasets, *, ranks: DataRanks, console: RankConsole
) -> RunLoaders:
    """Return the loaders of this rank.

    Prints a warning if the position of the user's own loader cannot be saved, so that a resume would repeat its data.
    """
    loaders = datasets.loaders(
        batch_settings(config),
        ranks=ranks,
        worker_init_fn=IgnoreSignals(
            (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, config.train.exit_signal)
        ),
    )
    warn_without_position(
        loaders.external,
        dataset=type(config.dataset).__name__,
        folders={
            "dataset.dataloader_save": config.dataset.dataloader_save,
            "dataset.dataloader_load": config.dataset.dataloader_load,
        },
        saves=config.checkpoint.save is not None,
        log=console.print,
    )
    return loaders


def run_checkpointer(
    manager: CheckpointManager,
    state: GlobalState,
    training_model: TrainingModel,
    *,
    train_data_iterator: Any,
    rerun_machine: MegatronRerunMachine | None,
    callbacks: Sequence[object],
    console: RankConsole,
) -> RunCheckpointer:
    """Return the checkpointer: the manager, with the objects whose state checkpoints contain."""
    peft = state.cfg.peft
    return RunCheckpointer(
        manager,
        state=state,
        model=training_model.chunks,
        optimizer=training_model.optimizer,
        scheduler=training_model.scheduler,
        groups=training_model.checkpoint_groups,
        train_data_iterator=train_data_iterator,
        rerun_state_machine=rerun_machine,
        adapter_key_filter=None if peft is None else peft.is_adapter,
        callbacks=stateful_callbacks(callbacks),
        best_metric=state.cfg.checkpoint.best_metric,
        megatron_arguments=megatron_arguments(
            state.cfg,
            padded_vocab_size=training_model.vocab_size,
            world_size=torch.distributed.get_world_size(),
        ),
        log=console.print,
    )


def open_folder(job: Job, console: RankConsole) -> None:
    """Save the configuration on rank 0, and open the logs of all ranks. Collective.

    An evaluation may run with a folder that cannot be written: it is not locked, and nothing is written to it.
    `logger.save_config_filepath` is written in any case.
    """
    if job.unwritable_reason is not None:
        console.print(
            f"{job.folder.path}: cannot be written ({job.unwritable_reason}): there is no log.txt, and the folder "
            "is not locked"
        )
    elif job.world.rank == 0 and not job.config.validation.skip_train:
        job.config.to_yaml(job.folder.run_config)
    if job.world.rank == 0 and job.config.logger.save_config_filepath is not None:
        job.config.to_yaml(job.config.logger.save_config_filepath)
    barrier()
    if job.unwritable_reason is None:
        console.open_log(job.folder.log)
    if job.world.is_logging_rank:
        console.log(non_default_values(job.config))


def shared_tokenizer(config: ConfigContainer, console: RankConsole) -> Tokenizer:
    """Prepare data and tokenizer on rank 0 with a progress bar; the other ranks wait and load them. Collective."""
    is_preparing = console.rank == 0
    with console.progress("preparing data", 1) if is_preparing else nullcontext(Bar()) as bar:
        tokenizer = prepare_tokenizer(
            config.dataset,
            config.tokenizer,
            saved_in=kept_by_run(config),
            progress=lambda stage, done, total: bar.update(done, total=total, label=stage),
        )
    if note := padding_note(config.model.vocab_size, tokenizer_vocab_size=tokenizer.vocab_size):
        console.print(note)
    return tokenizer
