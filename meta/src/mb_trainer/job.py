"""Entry point `pretrain(config)`: check everything, then train. torch is imported only after the checks."""

import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import mb_host
import mb_overlap
from mb_checkpoint import check_writable
from mb_checkpoint.layout import (
    is_iteration_directory,
    non_persistent_roots,
    step_of,
    steps_in,
    why_not_a_checkpoint,
)
from mb_config import DistributedInitConfig, Provenance
from mb_launch import World, bind_this_process, read_local_world_size, read_world
from mb_loop import TrainOutcome
from mb_models.mimo_layout_rules import LAYOUT, has_layouts
from mb_models.weight_shapes import fixed_by_weights
from mb_resilience import flight_recorder_environment
from mb_resilience.flight_recorder import DUMP_FILES, conflicting_variables
from mb_resilience.section_reporter import require_monitor
from mb_trainer.config import CheckpointConfig, ConfigContainer
from mb_trainer.console import Voice
from mb_trainer.machine import first_gpu
from mb_trainer.named_step import beginning, hold_once
from mb_trainer.preflight import Findings, settle, verify_data
from mb_trainer.run_folder import (
    NoCheckpointError,
    RunFolder,
    RunFolderError,
    Standing,
    UnwritableFolderError,
    changes_since,
    describe,
    folder_of,
    place,
    schedule_is_overridden,
    standing,
    why_unwritable,
)
from mb_trainer.weights import where_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Run that passed every check: its configuration, its folder and this process's rank."""

    name: str
    config: ConfigContainer
    settled: Findings
    folder: RunFolder
    standing: Standing
    world: World
    unwritable: str | None = None
    """Reason why nothing is written into the run folder; only an evaluation runs without writing."""
    resume_command: str | None = None
    """Command that resumes the run after a stop; if set, the process belongs to a command and ends with the run."""
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Changed settings: dotted path -> (saved, current), relative to the run in the folder."""
    beginning: Mapping[str, object] = field(default_factory=dict)
    """Step set by `checkpoint.ckpt_step` and its path, for the first event of the run; {}: none."""
    notes: tuple[str, ...] = ()
    """Messages to print before the run starts."""


def pretrain(
    config: ConfigContainer,
    *,
    name: str = "run",
    out: Path | str | None = None,
    provenance: Provenance | None = None,
    callbacks: Sequence[object] = (),
    resume_with_changes: bool = False,
    resume_command: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> TrainOutcome:
    """Train as configured, in a run folder, from its newest checkpoint if there is one.

    Collective: under torchrun or srun every process calls it. Without a GPU the process must not have imported
    megatron before.

    Args:
        config: resolved in place.
        name: names the run folder and appears in the log.
        out: run folder; None: `runs/<name>`.
        provenance: origin of the values; without it, values set in code count as set by the user.
        callbacks: called after the trainer's own.
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
        NoCheckpointError: only an evaluation is requested, and there is nothing to evaluate.
        mb_checkpoint.CheckpointNotFoundError: no checkpoint is intact.
        NoMonitorError: `ft.enable_ft_package` is set, and ft_launcher did not start this process.
        OSError: the checkpoint folder or the run folder cannot be written.
    """
    environment = os.environ if environment is None else environment
    # before everything else: threads that libraries start inherit the CPU affinity of this moment
    bound = bind_this_process(environment, local_rank=read_world(environment).local_rank)
    job = settle_job(
        config,
        name=name,
        out=out,
        provenance=provenance,
        resume_with_changes=resume_with_changes,
        resume_command=resume_command,
        environment=environment,
    )
    voice = Voice(rank=job.world.rank, speaks=job.world.is_logging_rank)
    set_environment(config.env_vars, say=voice.say)  # before torch is imported, which reads some of them
    if job.standing == "complete" and job.world.world_size == 1:
        done = outcome_if_complete(job, voice)
        if done is not None:
            return done
        job = replace(job, standing="resumable")
    voice.say(f"{name}: {described(job)}; loading Megatron Core")
    resolved = [f"resolved: {change}" for change in job.settled.notable]
    warnings = [f"warning: [{warning.id}] {warning}" for warning in job.settled.warnings]
    binding = [] if bound is None else [f"{bound} (--no-numa-binding switches it off)"]
    for line in (*binding, *job.notes, *resolved, *warnings):
        voice.say(line)
    set_environment(overlap_environment(config, world_size=job.world.world_size), say=voice.say)
    start_flight_recorder(config.dist, say=voice.say)
    mb_host.install()  # before megatron is imported; with a GPU only patches of Megatron are applied
    training = import_module("mb_trainer.training")  # imports torch; only after all checks
    with voice.warnings_logged(), voice.records_logged(config.logger):
        outcome: TrainOutcome = training.run(job, voice=voice, callbacks=callbacks)
    return outcome


def described(job: Job) -> str:
    """Return a description of the run folder's status; only all ranks together can verify that a run is complete."""
    if job.standing == "complete":
        return f"run in {job.folder.path}, whose last step seems to be there"
    return f"{job.standing} run in {job.folder.path}"


def outcome_if_complete(job: Job, voice: Voice) -> TrainOutcome | None:
    """Report a complete run and return its outcome if the last step exists and is intact; else return None.

    For a single process; imports torch. Raises the errors of a load.
    """
    # imports torch, which takes seconds; only if the last step seems to exist
    finished = import_module("mb_trainer.finished")
    checkpoint, steps = job.config.checkpoint, job.config.train.train_iters or 0
    chosen = finished.last_checkpoint(checkpoint, steps=steps, voice=voice)
    return None if chosen is None else say_complete(job, chosen.path, voice)


def say_complete(job: Job, last: Path, voice: Voice) -> TrainOutcome:
    """Report that there is nothing to do, and return the outcome; `last` is the checkpoint with all steps."""
    steps, checkpoint = job.config.train.train_iters or 0, job.config.checkpoint
    if checkpoint.save is not None and last.parent in (
        Path(checkpoint.save),
        *non_persistent_roots(checkpoint),
    ):
        message = f"{job.folder.path}: the run is complete ({steps} steps); nothing to do."
        voice.say(
            f"{message} Train longer with train.train_iters=N --resume-with-changes, or elsewhere with --out."
        )
    else:
        message = f"{last}: has all {steps} steps that are asked for; nothing to do, and nothing in {job.folder.path}."
        voice.say(f"{message} Train longer with train.train_iters=N.")
    return TrainOutcome(reason="finished", message=message, step=steps, exit_code=0, saved=False)


def settle_job(
    config: ConfigContainer,
    *,
    name: str,
    out: Path | str | None,
    provenance: Provenance | None,
    resume_with_changes: bool,
    environment: Mapping[str, str],
    resume_command: str | None = None,
) -> Job:
    """Check everything that is known before a start, without writing; raises as `pretrain`.

    A job is "complete" here if its last step seems to exist; the content of that checkpoint is not read.
    """
    world = read_world(environment)
    folder = folder_of(out, name=name)
    known = Provenance.of(config) if provenance is None else provenance
    place(config, folder, known)
    evaluates_only = config.validation.skip_train
    note = None if evaluates_only else hold_once(config.checkpoint, events=folder.events)
    settled = settle(
        config,
        world_size=world.world_size,
        provenance=known,
        local_world_size=read_local_world_size(environment),
    )
    verify_data(config)
    if config.ft is not None and config.ft.enable_ft_package:
        require_monitor(environment)
    save = config.checkpoint.save
    unwritable = why_unwritable(folder)
    if unwritable is not None and not evaluates_only:
        raise UnwritableFolderError(
            f"{folder.path}: {unwritable}, and metrics, events and settings are kept there. Choose another with --out."
        )
    if save is not None and not evaluates_only:
        check_writable(save)
    if not evaluates_only:
        refuse_to_start_over(config.checkpoint)
    changed = changes_since(folder, config.to_dict(), chosen=config.to_dict(defaults=False))
    if changed and not resume_with_changes:
        fixed = fixed_by_weights(changed) if goes_on(config.checkpoint) else []
        raise RunFolderError(describe(folder, changed, fixed=fixed))
    if changed and goes_on(config.checkpoint):
        refuse_other_modules(config, folder, changed)
    overrides = bool(changed) or schedule_is_overridden(folder)
    if overrides and not config.scheduler.use_checkpoint_opt_param_scheduler:
        config.scheduler.override_opt_param_scheduler = True  # replaces the checkpoint's schedule
    state = standing(
        last_step=last_step(config.checkpoint),
        train_iters=config.train.train_iters or 0,
        more=goes_on(config.checkpoint),
    )
    if evaluates_only:
        need_something_to_evaluate(config.checkpoint)
        state = "resumable" if state == "complete" else state
    return Job(
        name=name,
        config=config,
        settled=settled,
        folder=folder,
        changed=changed,
        standing=state,
        world=world,
        unwritable=unwritable,
        resume_command=resume_command,
        beginning=beginning(config.checkpoint),
        notes=tuple(line for line in (note, where_tokenizer(config)) if line is not None),
    )


def refuse_to_start_over(checkpoint: CheckpointConfig) -> None:
    """Reject a fresh start that would save into a folder with checkpoints.

    Raises:
        RunFolderError: `load` is null, and the folder has checkpoints.
    """
    if checkpoint.load is None and checkpoint.save and why_not_a_checkpoint(Path(checkpoint.save)) is None:
        raise RunFolderError(
            f"checkpoint.load: is null, so the run would begin anew, and {checkpoint.save} has checkpoints, among "
            "which it would save. Leave checkpoint.load out to go on from them, or choose another folder with --out."
        )


def need_something_to_evaluate(checkpoint: CheckpointConfig) -> None:
    """Reject the evaluation of random weights.

    Non-persistent checkpoints outside the folder (on the disks of the nodes, or in a separate folder) are not searched.

    Raises:
        NoCheckpointError: there is no checkpoint, and no weights are configured.
    """
    elsewhere = checkpoint.non_persistent_ckpt_type == "local" or checkpoint.non_persistent_global_ckpt_dir
    if (
        checkpoint.pretrained_checkpoint is not None
        or checkpoint.custom_manager_class is not None
        or elsewhere
    ):
        return
    load = checkpoint.load
    missing = "is null" if load is None else why_not_a_checkpoint(Path(load))
    if missing is not None:
        raise NoCheckpointError(
            f"validation.skip_train: {load or 'checkpoint.load'} {missing}, and the weights would be random ones. Name "
            "a run's folder with --out, or weights with checkpoint.pretrained_checkpoint."
        )


def set_environment(
    wanted: Mapping[str, str | int | float | bool],
    *,
    say: Callable[[str], None],
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Set the variables that the shell has not set; log the shell's values that take precedence."""
    environment = os.environ if environment is None else environment
    for name, value in wanted.items():
        if environment.setdefault(name, str(value)) != str(value):
            say(f"env_vars.{name}: the shell's value {environment[name]!r} wins over {str(value)!r}")


def start_flight_recorder(
    dist: DistributedInitConfig,
    *,
    say: Callable[[str], None],
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Configure torch's flight recorder of collectives and its dump path, and create the folder for the dumps.

    Raises:
        OSError: the folder cannot be created.
    """
    environment = os.environ if environment is None else environment
    for name, value in conflicting_variables(dist, environment=environment).items():
        say(f"dist.flight_recorder_dump_path: the shell's {name}={value} is kept")
    environment.update(flight_recorder_environment(dist, environment=environment))
    for name in DUMP_FILES:
        if name in environment:
            Path(environment[name]).parent.mkdir(parents=True, exist_ok=True)


def overlap_environment(
    config: ConfigContainer,
    *,
    world_size: int,
    gpu: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables for communication overlap on this machine's GPU (or on `gpu`), without those already set."""
    environment = os.environ if environment is None else environment
    model = config.model
    tp, cp, pp = (
        model.tensor_model_parallel_size,
        model.context_parallel_size,
        model.pipeline_model_parallel_size,
    )
    return mb_overlap.recommended_env_vars(
        gpu=gpu or first_gpu(environment),
        tp=tp,
        cp=cp,
        pp=pp,
        dp=world_size // (tp * cp * pp),
        fsdp=config.ddp.use_megatron_fsdp,
        moe_overlap=model.overlap_moe_expert_parallel_comm or model.moe_token_dispatcher_type == "flex",
        env=environment,
    )


def refuse_other_modules(
    config: ConfigContainer, folder: RunFolder, changed: Mapping[str, tuple[Any, Any]]
) -> None:
    """Reject a resume with per-module parallelism of a run that trained one model, and the reverse.

    Raises:
        RunFolderError: the optimizer's state would be loaded.
    """
    now = [getattr(config.model, path.removeprefix("model."), None) for path in LAYOUT]
    there = [changed[path][0] if path in changed else value for path, value in zip(LAYOUT, now, strict=True)]
    if config.checkpoint.load_optim and has_layouts(*now) != has_layouts(*there):
        kinds = {True: "modules with layouts of their own", False: "one model"}
        raise RunFolderError(
            f"{folder.path}: holds the optimizer of {kinds[has_layouts(*there)]}, and this run trains "
            f"{kinds[has_layouts(*now)]}, because the layout of modules was changed; the two are stored otherwise. "
            "Take its weights to another folder (--out and checkpoint.pretrained_checkpoint), or go on with "
            "checkpoint.load_optim=false."
        )


def goes_on(checkpoint: CheckpointConfig) -> bool:
    """Return whether there is a checkpoint to resume from: persistent, non-persistent or on the disk of this node.

    A checkpoint on the disks of the nodes may be incomplete; only all ranks together can determine that.
    """
    if checkpoint.finetune:
        return False
    lasting = [] if checkpoint.load is None else [Path(checkpoint.load)]
    if any(why_not_a_checkpoint(root) is None for root in (*lasting, *non_persistent_roots(checkpoint))):
        return True
    local = checkpoint.non_persistent_local_ckpt_dir
    wanted = checkpoint.non_persistent_ckpt_type == "local" and local is not None
    return wanted and next(Path(local or "").rglob("iter_*_local.pt"), None) is not None


def last_step(checkpoint: CheckpointConfig) -> int | None:
    """Return the highest step that a load could take, by folder names alone; None if there is none.

    Completeness and the tracker's content are not checked, because that requires torch.
    """
    if checkpoint.load is None or checkpoint.finetune:
        return None
    load = Path(checkpoint.load)
    try:
        if is_iteration_directory(load):
            return step_of(load)
        if checkpoint.ckpt_step is not None:
            return checkpoint.ckpt_step
        return max(
            (step for root in (load, *non_persistent_roots(checkpoint)) for step in steps_in(root)),
            default=None,
        )
    except OSError:
        return None  # the load reports why the folder cannot be read
