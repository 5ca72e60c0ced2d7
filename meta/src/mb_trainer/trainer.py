"""Entry point `pretrain(config)`: settle the run, set its environment, then train. Imports torch after all checks."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import mb_checkpoint
import mb_host
import mb_overlap
from mb_checkpoint.initial_weights import require_weights
from mb_checkpoint.run_status import is_in_save_folder
from mb_config import Provenance
from mb_launch import bind_this_process, read_world, set_unset_variables
from mb_loop import TrainOutcome
from mb_metrics.captured_logging import captured_records, captured_warnings
from mb_resilience import start_flight_recorder
from mb_trainer.config import ConfigContainer
from mb_trainer.console import Console
from mb_trainer.machine import first_gpu
from mb_trainer.settle import Job, RunOptions, settle_job
from mb_trainer.user_code import NO_CODE, UserCode


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
    """Train as configured, in a run folder, from its newest checkpoint if there is one.

    Collective: under torchrun or srun every process calls it. Without a GPU the process must not have imported
    megatron before.

    Args:
        config: resolved in place.
        forward_step_func: `(iterator, model)` or `(state, iterator, model)`, as Megatron's schedules call it; None:
            that of `code`, or of the model's family.
        callbacks: called after those of `code`, which are called after the trainer's own.
        code: forward step, hooks on the model, callbacks and sinks of the user.
        name: names the run folder and appears in the log.
        out: run folder; None: `runs/<name>`.
        provenance: origin of the values; without it, values set in code count as set by the user.
        resume_with_changes: resume although the run folder's settings differ.
        resume_command: shown after a stop. With it, the process is expected to end with the run: from the first step
            on, `train.exit_signal` only ever requests a stop. Without it the previous signal handlers are restored.
        environment: variables with rank and world size; None: `os.environ`.

    Returns:
        Reason and step of the end of training. A run that is already complete is "finished" at its last step.

    Raises:
        mb_config.ConfigError: rules are violated; holds every problem.
        FileNotFoundError, ValueError: a data file is missing or malformed.
        RunFolderError: the run folder holds a run with other settings.
        mb_config.SavedSettingsError: the settings in the run folder cannot be read.
        NoCheckpointError: only an evaluation is requested, and there is nothing to evaluate.
        mb_checkpoint.CheckpointNotFoundError: no checkpoint is intact.
        UserCodeError: non-loss data would be processed without TensorBoard.
        NoMonitorError: `ft.enable_ft_package` is set, and ft_launcher did not start this process.
        OSError: the checkpoint folder or the run folder cannot be written.
    """
    own_step = code.forward_step if forward_step_func is None else forward_step_func
    return train_job(
        config,
        RunOptions(
            name=name,
            out=out,
            provenance=provenance,
            code=replace(code, forward_step=own_step, callbacks=(*code.callbacks, *callbacks)),
            resume_with_changes=resume_with_changes,
            resume_command=resume_command,
            environment=os.environ if environment is None else environment,
        ),
    )


def train_job(config: ConfigContainer, options: RunOptions) -> TrainOutcome:
    """Do what `pretrain` documents."""
    environment = options.environment
    # before everything else: threads that libraries start inherit the CPU affinity of this moment
    bound = bind_this_process(environment, local_rank=read_world(environment).local_rank)
    job = settle_job(config, options)
    console = Console(rank=job.world.rank, prints=job.world.is_logging_rank)
    # before torch is imported, which reads some of them
    set_unset_variables(config.env_vars, log=console.print)
    if job.status.state == "complete" and job.world.world_size == 1:
        done = outcome_if_complete(job, console)
        if done is not None:
            return done
        job = replace(job, status=replace(job.status, state="resumable"))
    announce(job, bound, console)
    set_overlap_variables(job, environment, console)
    start_flight_recorder(config.dist, log=console.print)
    mb_host.install()  # before megatron is imported; with a GPU only patches of Megatron are applied
    build = import_module("mb_trainer.build")  # imports torch; only after all checks
    warnings = nullcontext() if console.prints else captured_warnings(console)
    with warnings, captured_records(console, config.logger):
        outcome: TrainOutcome = build.run(job, console=console)
    return outcome


def finetune(
    config: ConfigContainer,
    forward_step_func: Callable[..., Any] | None = None,
    callbacks: Sequence[object] = (),
    **options: Any,
) -> TrainOutcome:
    """Train from the weights in `checkpoint.pretrained_checkpoint`, or resume such a run; as `pretrain` otherwise.

    Raises:
        mb_checkpoint.CheckpointConfigError: there are no weights to start from.
    """
    require_weights(config.checkpoint)
    return pretrain(config, forward_step_func, callbacks, **options)


def announce(job: Job, bound: str | None, console: Console) -> None:
    """Print what starts: the run folder's status, the CPU binding, notes, resolved settings and warnings."""
    console.print(f"{job.options.name}: {status_text(job)}; loading Megatron Core")
    resolved = [f"resolved: {change}" for change in job.settled.notable]
    warnings = [f"warning: [{warning.id}] {warning}" for warning in job.settled.warnings]
    binding = [] if bound is None else [f"{bound} (--no-numa-binding switches it off)"]
    for line in (*binding, *job.notes, *resolved, *warnings):
        console.print(line)


def set_overlap_variables(job: Job, environment: Mapping[str, str], console: Console) -> None:
    """Set the environment variables for communication overlap on this machine's GPU."""
    variables = mb_overlap.model_env_vars(
        job.config.model,
        world_size=job.world.world_size,
        gpu=first_gpu(environment),
        fsdp=job.config.ddp.use_megatron_fsdp,
        env=os.environ,
    )
    set_unset_variables(variables, log=console.print)


def status_text(job: Job) -> str:
    """Return a description of the run folder's status; only all ranks together can verify that a run is complete."""
    if job.status.state == "complete":
        return f"run in {job.folder.path}, whose last step seems to be there"
    return f"{job.status.state} run in {job.folder.path}"


def outcome_if_complete(job: Job, console: Console) -> TrainOutcome | None:
    """Report a complete run and return its outcome if the last step exists and is intact; else return None.

    For a single process; imports torch. Raises the errors of a load.
    """
    with console.progress("verifying the last checkpoint", 1) as bar:
        chosen = mb_checkpoint.verify_last_checkpoint(
            job.config.checkpoint,
            train_iters=job.config.train.train_iters or 0,
            progress=lambda done, total: bar.update(done, total=total),
        )
    return None if chosen is None else report_complete(job, chosen.path, console)


def report_complete(job: Job, last: Path, console: Console) -> TrainOutcome:
    """Report that there is nothing to do, and return the outcome; `last` is the checkpoint with all steps."""
    steps = job.config.train.train_iters or 0
    if is_in_save_folder(job.config.checkpoint, last):
        message = f"{job.folder.path}: the run is complete ({steps} steps); nothing to do."
        console.print(
            f"{message} Train longer with train.train_iters=N --resume-with-changes, or elsewhere with --out."
        )
    else:
        message = (
            f"{last}: has all {steps} steps of this run; nothing to do, and nothing in {job.folder.path}."
        )
        console.print(f"{message} Train longer with train.train_iters=N.")
    return TrainOutcome(reason="finished", message=message, step=steps, exit_code=0, saved=False)
