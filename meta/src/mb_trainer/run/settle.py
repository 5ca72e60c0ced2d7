"""Settled run: checked configuration, run folder, and the checkpoint to resume from. Nothing is written to disk.

The steps of `settle_job`:

1. `complete` takes values from the run folder and from checkpoints; `completion.py` lists its steps.
2. `resolve_and_check` computes fields that follow from others, and applies the rules of all packages.
3. The dataset section is finalized and its files are checked, then code of the user, the monitor and the folders.
   Rank 0 alone checks files and folders; a launcher ends the others if it fails.
4. `resume_status` finds the checkpoint to resume from; `changed_settings` compares with the run that is resumed.
5. The current schedule replaces that of the checkpoint if settings of a resumed run have changed.

The configuration changes in steps 1, 2, 3 (finalized dataset) and 5 (one field). `build.py` resets one more field,
`checkpoint.ckpt_step`, once the checkpoint is loaded.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mb_checkpoint import check_writable, resume_status
from mb_checkpoint.trainer_api import ResumeStatus, stored_run_config, unwritable_reason
from mb_config import Provenance, difference_lines
from mb_config.trainer_api import PreflightResult, changed_settings_message
from mb_launch import World, read_local_world_size, read_world
from mb_metrics.trainer_api import RunFolder, changed_code
from mb_models.trainer_api import fixed_by_weights, stored_optimizer_error
from mb_resilience import RestartAttempt
from mb_resilience.trainer_api import require_monitor
from mb_trainer.config import ConfigContainer
from mb_trainer.errors import NoCheckpointError, RunFolderError, UnwritableFolderError, UserCodeError
from mb_trainer.run.completion import FieldChange, apply, complete
from mb_trainer.run.data_checks import verify_data, where_tokenizer
from mb_trainer.run.preflight import resolve_and_check
from mb_trainer.run.run_folder import SettingsSource, settings_in_storage, settings_sources
from mb_trainer.run.user_code import NO_CODE, UserCode


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run besides its configuration. `mb_trainer.pretrain` documents those that it takes."""

    name: str = "run"
    out: Path | str | None = None
    provenance: Provenance | None = None
    code: UserCode = NO_CODE
    resume_with_changes: bool = False
    resume_command: str | None = None
    process_ends: bool = False
    """If True, the process ends after the run: `train.exit_signal` requests a stop until then. Otherwise the previous
    signal handlers are restored."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    notes: Sequence[str] = ()
    """Messages to print before the run starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Run that passed every check: its configuration, its folder and this process's rank."""

    options: RunOptions
    config: ConfigContainer
    settled: PreflightResult
    folder: RunFolder
    status: ResumeStatus
    """Checkpoint to resume from, by folder names; contents are verified later."""
    world: World
    unwritable_reason: str | None = None
    """Reason why nothing is written into the run folder; only an evaluation runs without writing."""
    changed_settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Changed settings: dotted path -> (saved, current), relative to the run that is resumed."""
    user_paths: Sequence[str] = ()
    """Fields that the user set."""
    notes: tuple[str, ...] = ()
    """Messages to print before the run starts."""
    started: float | None = None
    """Start of the process, or of a later run or attempt in it, in seconds since the epoch."""
    attempt: RestartAttempt | None = None
    """Attempt of a run with in-process restarts, with the store of its process group."""


def settle_job(config: ConfigContainer, options: RunOptions) -> Job:
    """Check everything that is known before a start, without writing; raises as `pretrain`.

    A job is "complete" here if its last step seems to exist; the content of that checkpoint is not read.
    """
    world = read_world(options.environment)
    folder = RunFolder.named(options.out, name=options.name)
    folder.require_files()
    known = Provenance.of(config) if options.provenance is None else options.provenance
    completed = complete(config, folder, known)
    evaluate_only = config.validation.skip_train
    settled = resolve_and_check(
        config,
        world_size=world.world_size,
        provenance=known,
        local_world_size=read_local_world_size(options.environment),
    )
    config.dataset.finalize()
    if world.rank == 0:  # one process: the others would read and write the same shared files
        verify_data(config)
    if options.code.process_non_loss_data is not None and config.logger.tensorboard_dir is None:
        raise UserCodeError(
            "process_non_loss_data: is set with logger.tensorboard_dir=null, and receives TensorBoard's writer. "
            "Set logger.tensorboard_dir."
        )
    if options.code.compute_metrics is not None and config.model.cuda_graph_impl == "full_iteration":
        raise UserCodeError(
            "compute_metrics: cannot be called with model.cuda_graph_impl=full_iteration, because a graph replays "
            "evaluations without Python. Set another cuda_graph_impl, such as transformer_engine."
        )
    if config.ft is not None and config.ft.enable_ft_package:
        require_monitor(options.environment)
    unwritable = require_writable(config, folder) if world.rank == 0 or evaluate_only else None
    status = resume_status(
        config.checkpoint, train_iters=config.train.train_iters or 0, evaluate_only=evaluate_only
    )
    if status.state == "rejected":
        raise (NoCheckpointError if evaluate_only else RunFolderError)(status.reason)
    sources = settings_sources(folder, config.checkpoint)
    resumed = [source for source in sources if source.is_resumed]
    if evaluate_only:  # resumes nothing, and is compared with the run in its folder
        resumed = [source for source in resumed if source.name == str(folder.path)]
    changed = changed_settings(config, resumed, options, code=folder, resumes=status.resumes)
    apply(override_schedule(config, resumed, changed), config, known)
    kept = where_tokenizer(config)
    return Job(
        options=options,
        config=config,
        settled=settled,
        folder=folder,
        changed_settings=changed,
        status=status,
        world=world,
        unwritable_reason=unwritable,
        user_paths=known.user_paths,
        notes=(
            *options.notes,
            *completed,
            *([] if kept is None else [kept]),
            *branch_notes(config, sources, evaluate_only=evaluate_only),
        ),
    )


def require_writable(config: ConfigContainer, folder: RunFolder) -> str | None:
    """Check that the folders of a run can be written; return why not for an evaluation, which then writes nothing.

    Raises:
        UnwritableFolderError: the run folder cannot be written.
        OSError: the checkpoint folder cannot be written.
    """
    unwritable = unwritable_reason(folder.path)
    if config.validation.skip_train:
        return unwritable
    if unwritable is not None:
        raise UnwritableFolderError(
            f"{folder.path}: cannot be written ({unwritable}), and metrics, events and settings are kept there. Choose "
            "another with --out."
        )
    if config.checkpoint.save is not None:
        check_writable(config.checkpoint.save)
    return None


def changed_settings(
    config: ConfigContainer,
    sources: Iterable[SettingsSource],
    options: RunOptions,
    *,
    code: RunFolder | None = None,
    resumes: bool,
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from those of the run that is resumed: dotted path -> (previous, current).

    A forward step or a hook of the user counts as a setting, by its name in the events of the folder `code`.

    Raises:
        RunFolderError: there are any and changes are not allowed, or the optimizer state cannot be loaded with them.
        mb_config.overrides.saved_settings.SavedSettingsError: the saved settings cannot be read.
    """
    changed: dict[str, tuple[Any, Any]] = {}
    for source in sources:
        differences = source.saved.differences(config)
        if code is not None and source.name == str(code.path):
            differences |= changed_code(code.events, options.code.names)
        if differences and not options.resume_with_changes:
            fixed = fixed_by_weights(differences) if resumes else []
            raise RunFolderError(
                changed_settings_message(source.name, differences, fixed=fixed, other=source.other)
            )
        if differences and resumes and config.checkpoint.load_optim:
            reason = stored_optimizer_error(config.model, differences)
            if reason is not None:
                raise RunFolderError(f"{source.name}: {reason}")
        changed |= differences
    return changed


def override_schedule(
    config: ConfigContainer, sources: Iterable[SettingsSource], changed: Mapping[str, tuple[Any, Any]]
) -> list[FieldChange]:
    """Select the configured schedule if settings have changed, unless that of the checkpoint is selected."""
    # the newest checkpoint of a run that was resumed with changes may still hold the old schedule
    overridden = any(
        source.saved.section("scheduler").get("override_opt_param_scheduler") for source in sources
    )
    if not (changed or overridden) or config.scheduler.use_checkpoint_opt_param_scheduler:
        return []
    return [FieldChange(path="scheduler.override_opt_param_scheduler", value=True)]


def branch_notes(
    config: ConfigContainer, sources: Iterable[SettingsSource], *, evaluate_only: bool
) -> list[str]:
    """Return the message that a run continues from a checkpoint of another run, with settings that differ."""
    notes = []
    for source in sources:
        changed = {} if source.is_resumed or evaluate_only else source.saved.differences(config)
        if changed:
            notes.append(
                f"checkpoint.load: the run of {source.name} has other settings. Those of this run apply:\n"
                f"{difference_lines(changed)}"
            )
    return notes


def compare_with_storage(job: Job, on_rank_zero: Callable[[Callable[[], Any]], Any]) -> Job:
    """Compare a run without checkpoints with the checkpoint in `checkpoint.storage` that it is to resume from.

    Collective. `on_rank_zero` calls a function on rank 0, and returns its result or raises its error on all ranks.
    Errors as `changed_settings`, and those of the storage.
    """
    config, options = job.config, job.options
    if config.checkpoint.storage is None or config.validation.skip_train:
        return job

    def compare() -> tuple[list[SettingsSource], dict[str, tuple[Any, Any]]]:
        is_known = job.status.resumes or job.folder.run_config.exists()
        stored = None if is_known else stored_run_config(config.checkpoint)
        sources = [] if stored is None else [settings_in_storage(stored)]
        return sources, changed_settings(config, sources, options, resumes=True)

    sources, changed = on_rank_zero(compare)
    apply(override_schedule(config, sources, changed), config, Provenance.of(config))
    return replace(job, changed_settings={**job.changed_settings, **changed})
