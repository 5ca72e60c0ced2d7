"""Entry points `pretrain` and `finetune`: check the configuration, set up the process, train.

torch is imported only after all checks have passed.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, cast

import psutil

import mb_guard
import mb_host
import mb_overlap
from mb_checkpoint.trainer_api import convert_once, require_weights
from mb_config import Provenance
from mb_launch import bind_this_process, read_world, set_unset_variables
from mb_loop import TrainOutcome
from mb_metrics.trainer_api import RankConsole
from mb_resilience import start_flight_recorder
from mb_trainer.config import ConfigContainer
from mb_trainer.run.complete_run import outcome_if_complete
from mb_trainer.run.preflight import first_gpu
from mb_trainer.run.pretrained import IMPORT
from mb_trainer.run.settle import Job, RunOptions, settle_job
from mb_trainer.run.user_code import NO_CODE, UserCode

_RUNS = count()
"""Number of the runs of this process; equal on all ranks."""


def pretrain(  # noqa: PLR0913 - each by name; the first three are Megatron-Bridge's
    config: ConfigContainer,
    forward_step_func: Callable[..., Any] | None = None,
    callbacks: Sequence[object] = (),
    *,
    code: UserCode = NO_CODE,
    name: str = "run",
    out: Path | str | None = None,
    provenance: Provenance | None = None,
    resume_with_changes: bool = False,
    resume_command: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> TrainOutcome:
    """Train as configured. If the run folder contains a checkpoint of this run, training resumes from the newest one.

    Collective: under torchrun or srun every process calls it. Without a GPU, nothing imports
    megatron before `mb_trainer`.

    Args:
        config: configuration. It is not changed: a copy is completed with the values that depend on others and the
            paths in the run folder.
        forward_step_func: `(iterator, model)` or `(state, iterator, model)`, as Megatron's schedules call it; None:
            that of `code`, or of the model's family.
        callbacks: called after the trainer's own callbacks and those of `code`.
        code: forward step, hooks on the model, callbacks and sinks of the user.
        name: names the run folder and appears in the log.
        out: run folder; None: `runs/<name>`.
        provenance: origin of the values, for messages; None: all values differing from the defaults were set in code.
        resume_with_changes: resume although the configuration differs from the one saved in the run folder.
        resume_command: command that is printed after a stop, to resume the run.
        environment: variables with rank and world size; None: `os.environ`.

    Returns:
        Reason and step of the end of training. A run that is already complete is "finished" at its last step.

    Raises:
        mb_config.ConfigError: the configuration is invalid; contains every problem.
        FileNotFoundError, ValueError: a data file is missing or malformed.
        mb_trainer.errors.RunFolderError: the run folder belongs to a run with another configuration.
        mb_metrics.errors.RunFolderNameError: `out` is a URL.
        mb_config.overrides.saved_settings.SavedSettingsError: the configuration saved in the run folder cannot be read.
        mb_trainer.errors.NoCheckpointError: only an evaluation is requested, and there is no checkpoint.
        mb_checkpoint.CheckpointNotFoundError: every checkpoint is damaged.
        mb_trainer.errors.UserCodeError: non-loss data would be processed without TensorBoard.
        mb_resilience.NoMonitorError: `ft.enable_ft_package` is set, and ft_launcher did not start this process.
        mb_resilience.RestartLimitError: `inprocess_restart` permits no further attempt.
        OSError: the checkpoint folder or the run folder cannot be written.
    """
    own_step = code.forward_step if forward_step_func is None else forward_step_func
    return train_job(
        config,
        RunOptions(
            name=name,
            out=out,
            provenance=provenance,
            code=replace(code.with_callbacks(callbacks), forward_step=own_step),
            resume_with_changes=resume_with_changes,
            resume_command=resume_command,
            environment=os.environ if environment is None else environment,
        ),
    )


def train_job(config: ConfigContainer, options: RunOptions) -> TrainOutcome:
    """Train with options in one record. `pretrain` documents them, the result and the errors."""
    number = next(_RUNS)
    started = psutil.Process().create_time() if number == 0 else time.time()
    config = deepcopy(config)  # the caller may start further runs with it
    environment, restart = options.environment, config.inprocess_restart
    given = deepcopy(config) if restart is not None and restart.enabled else None
    # first: threads that libraries start later inherit the CPU affinity of the process
    bound = bind_this_process(environment, local_rank=read_world(environment).local_rank)
    job = settle_job(config, options)
    # the store of a launcher keeps the keys of an earlier run of this process
    attempt = f"{job.world.attempt}.{number}"
    job = replace(job, world=replace(job.world, attempt=attempt), started=started)
    console = RankConsole.of(job.world, style=config.logger.console)
    # before the import of torch, which reads some of these variables
    set_unset_variables(config.env_vars, log=console.print)
    if job.status.state == "complete" and job.world.world_size == 1:
        done = outcome_if_complete(job, console)
        if done is not None:
            return done
        job = replace(job, status=replace(job.status, state="resumable"))
    announce(job, bound, console)
    convert_once(config.checkpoint.pretrained_checkpoint, command=IMPORT, log=console.print)
    set_overlap_variables(job, environment, console)
    start_flight_recorder(config.dist, log=console.print)
    mb_host.install()  # before the import of megatron; without effect on torch where there is a GPU
    console.print(mb_guard.install(quiet=True).line())
    build = import_module("mb_trainer.run.build")  # imports torch, which takes seconds: only after all checks
    if given is None:
        return cast("TrainOutcome", build.run(job, console=console))
    restarts = import_module("mb_trainer.run.restarts")  # imports NVRx
    return cast("TrainOutcome", restarts.train_with_restarts(job, given=given, train=build.run))


def finetune(
    config: ConfigContainer,
    forward_step_func: Callable[..., Any] | None = None,
    callbacks: Sequence[object] = (),
    **options: Any,
) -> TrainOutcome:
    """Train from the weights in `checkpoint.pretrained_checkpoint`, or resume such a run.

    Arguments, result and further errors are those of `pretrain`.

    Raises:
        mb_checkpoint.errors.CheckpointConfigError: `checkpoint.pretrained_checkpoint` is not set.
    """
    require_weights(config.checkpoint)
    return pretrain(config, forward_step_func, callbacks, **options)


def announce(job: Job, bound: str | None, console: RankConsole) -> None:
    """Print the status of the run folder, the CPU binding, values that were filled in, and warnings."""
    # with several ranks, the last checkpoint of a complete run is verified later, collectively
    complete = job.status.state == "complete"
    storage = job.config.checkpoint.storage
    is_fetched = job.status.state == "fresh" and storage is not None  # it is read later, collectively
    run = "run" if complete or is_fetched else f"{job.status.state} run"
    last = ", which has a checkpoint of its last step" if complete else ""
    if is_fetched:
        last = ", which has no checkpoint; resumes from checkpoint.storage if that has one"
    console.print(f"{job.options.name}: {run} in {job.folder.path}{last}; loading Megatron Core")
    resolved = [f"resolved: {change}" for change in job.settled.notable]
    warnings = [f"warning: [{warning.id}] {warning}" for warning in job.settled.warnings]
    binding = [] if bound is None else [f"{bound} (--no-numa-binding switches it off)"]
    for line in (*binding, *job.notes, *resolved, *warnings):
        console.print(line)


def set_overlap_variables(job: Job, environment: Mapping[str, str], console: RankConsole) -> None:
    """Set the environment variables for communication overlap on this machine's GPU."""
    variables = mb_overlap.model_env_vars(
        job.config.model,
        world_size=job.world.world_size,
        gpu=first_gpu(environment),
        fsdp=job.config.ddp.use_megatron_fsdp,
        env=os.environ,
    )
    set_unset_variables(variables, log=console.print)
