"""Settled run: checked configuration, run folder, and the checkpoint to resume from. Nothing is written to disk.

The steps of `settle_job`:

1. `complete` takes values from the run folder and from checkpoints; `completion.py` lists its steps.
2. `resolve_and_check` computes fields that follow from others, and applies the rules of all packages.
3. The dataset section is finalized and its files are checked, then code of the user, the monitor and the folders.
4. `resume_status` finds the checkpoint to resume from; `changed_settings` compares it with the run in the folder.
5. The current schedule replaces that of the checkpoint if settings of a resumed run have changed.

The configuration changes in steps 1, 2, 3 (finalized dataset) and 5 (one field).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mb_checkpoint import check_writable, resume_status
from mb_checkpoint.trainer_api import ResumeStatus, unwritable_reason
from mb_config import Provenance, SavedSettings
from mb_config.trainer_api import PreflightResult, changed_settings_message
from mb_launch import World, read_local_world_size, read_world
from mb_metrics.trainer_api import RunFolder, changed_code
from mb_models.trainer_api import fixed_by_weights, stored_optimizer_error
from mb_resilience import RestartAttempt
from mb_resilience.trainer_api import require_monitor
from mb_trainer.config import ConfigContainer
from mb_trainer.errors import NoCheckpointError, RunFolderError, UnwritableFolderError, UserCodeError
from mb_trainer.run.completion import complete
from mb_trainer.run.data_checks import verify_data
from mb_trainer.run.preflight import resolve_and_check
from mb_trainer.run.run_folder import saved_settings
from mb_trainer.run.tokenizer_assets import where_tokenizer
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
    """Changed settings: dotted path -> (saved, current), relative to the run in the folder."""
    user_paths: Sequence[str] = ()
    """Fields that the user set."""
    notes: tuple[str, ...] = ()
    """Messages to print before the run starts."""
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
    unwritable = require_writable(config, folder)
    status = resume_status(
        config.checkpoint, train_iters=config.train.train_iters or 0, evaluate_only=evaluate_only
    )
    if status.state == "rejected":
        raise (NoCheckpointError if evaluate_only else RunFolderError)(status.reason)
    saved = saved_settings(folder)
    changed = changed_settings(config, saved, folder, options, resumes=status.resumes)
    # the newest checkpoint of a run that was resumed with changes may still hold the old schedule
    overrides = bool(changed) or bool(saved.section("scheduler").get("override_opt_param_scheduler"))
    if overrides and not config.scheduler.use_checkpoint_opt_param_scheduler:
        config.scheduler.override_opt_param_scheduler = True
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
        notes=(*options.notes, *completed, *([] if kept is None else [kept])),
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
    config: ConfigContainer, saved: SavedSettings, folder: RunFolder, options: RunOptions, *, resumes: bool
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from those saved in the folder: dotted path -> (previous, current).

    A forward step or a hook of the user counts as a setting, by its name.

    Raises:
        RunFolderError: there are any and changes are not allowed, or the optimizer state cannot be loaded with them.
        mb_config.overrides.saved_settings.SavedSettingsError: the settings in the folder cannot be read.
    """
    changed = saved.differences(config) | changed_code(folder.events, options.code.names)
    if changed and not options.resume_with_changes:
        fixed = fixed_by_weights(changed) if resumes else []
        raise RunFolderError(changed_settings_message(folder.path, changed, fixed=fixed))
    if changed and resumes and config.checkpoint.load_optim:
        reason = stored_optimizer_error(config.model, changed)
        if reason is not None:
            raise RunFolderError(f"{folder.path}: {reason}")
    return changed
