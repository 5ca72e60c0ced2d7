"""Run folder: its paths in a configuration, and whether its settings are those of a run that would resume it."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import mb_checkpoint.rules
import mb_config.rules.local_paths
import mb_data.rules
import mb_metrics.rules
import mb_resilience.rules
from mb_checkpoint import release_ckpt_step
from mb_checkpoint.formats.foreign import is_same_folder
from mb_checkpoint.formats.layout import checkpoints_in, why_not_a_checkpoint
from mb_config import Provenance, SavedSettings
from mb_config.container.home_directory import expand_home_in
from mb_config.overrides.provenance import remember_resolved
from mb_metrics import read_event_rows
from mb_metrics.run.folder import CONFIG, RunFolder
from mb_resilience import InProcessRestartConfig
from mb_schema.paths import is_url
from mb_trainer.config import ConfigContainer
from mb_trainer.errors import RunFolderError

NOT_SETTINGS = frozenset(
    {
        "checkpoint.save",
        "checkpoint.load",
        "checkpoint.ckpt_step",
        "checkpoint.trust",
        "tensor_inspect.allow_custom_feature_dirs",
        "logger.tensorboard_dir",
        "comm_overlap.data_parallel_size",
        "model.transformer_impl",
        "scheduler.override_opt_param_scheduler",
        "train.exit_interval",
        "validation.skip_train",
        *(
            "inprocess_restart",
            *(f"inprocess_restart.{field.name}" for field in fields(InProcessRestartConfig)),
        ),
    }
)
"""Fields derived from the folder, the machine or a resume, consents, the start and the end of a run, restarts, and
evaluation-only mode; they do not make two runs different.
"""

PATH_FIELDS: tuple[str, ...] = (
    *mb_config.rules.local_paths.PATH_FIELDS,
    *mb_data.rules.PATH_FIELDS,
    *mb_checkpoint.rules.PATH_FIELDS,
    *mb_metrics.rules.PATH_FIELDS,
    *mb_resilience.rules.PATH_FIELDS,
)
"""Fields that hold a path to files or folders, of every section."""


RUN_PATHS = "run folder"
"""Rule under which paths of a run folder are set."""
_OWN = ("checkpoint.save", "checkpoint.load", "logger.tensorboard_dir")


def forget_paths_of_other_run(config: ConfigContainer, provenance: Provenance) -> None:
    """Unset the paths that a run has set to its own folder, in this object or in its run_config.yaml.

    Files of older versions hold them. They are recognized by their values: checkpoints and TensorBoard's files in one
    folder, under the names that a run gives them.
    """
    origins = {path: provenance.origin(path) for path in _OWN}
    own = [path for path, origin in origins.items() if origin == f"resolve: {RUN_PATHS}"]
    save, tensorboard = config.checkpoint.save, config.logger.tensorboard_dir
    if save and tensorboard and all(_is_saved(origins[path]) for path in (_OWN[0], _OWN[2])):
        folder = RunFolder(Path(save).parent)
        if (save, tensorboard) == (str(folder.checkpoints), str(folder.tensorboard)):
            own = [path for path in _OWN if path != _OWN[1] or config.checkpoint.load == save]
    for path in own:
        section, _, name = path.partition(".")
        setattr(getattr(config, section), name, None)
        provenance.origins.pop(path, None)


def _is_saved(origin: str) -> bool:
    """Return whether a value is from a run_config.yaml."""
    return Path(origin.rpartition(":")[0]).name == CONFIG


def release_start(config: ConfigContainer, folder: RunFolder) -> str | None:
    """Resume from the run's own checkpoints if it has saved since it started elsewhere; return the message, or None.

    Files keep the folder that it has started from, for other runs with these settings.
    """
    given = config.checkpoint.load
    message = release_ckpt_step(config.checkpoint, events=read_event_rows(folder.events))
    if (own := config.checkpoint.load) != given:
        remember_resolved(config, "checkpoint.load", own, rule=RUN_PATHS, of_run=True, written=given)
    return message


def saved_settings(folder: RunFolder) -> SavedSettings:
    """Return the settings of the run in a folder, which may be missing."""
    return SavedSettings(
        file=folder.run_config,
        ignored=NOT_SETTINGS,
        fix="Restore the file, or remove it to resume with the settings of this command (checkpoints are not "
        "changed), or give another folder with --out.",
    )


def in_use_error(folder: RunFolder) -> RunFolderError:
    """Return the error for a run folder that another trainer holds."""
    return RunFolderError(
        f"{folder.path}: another trainer is at work in this run folder; two would overwrite each other's checkpoints "
        "and mix their metrics. Wait until it has ended, or choose another folder with --out."
    )


def set_run_paths(config: ConfigContainer, folder: RunFolder, provenance: Provenance) -> None:
    """Set the unset paths to the run folder, and resolve named run folders to the checkpoints in them.

    A path that was set to null stays null. Paths that another run has set to its own folder are not settings, and are
    replaced.
    """
    expand_home_in(config, PATH_FIELDS)
    forget_paths_of_other_run(config, provenance)
    checkpoint, logger = config.checkpoint, config.logger
    if is_same_folder(checkpoint.load, str(folder.path)):
        checkpoint.load = checkpoint.save or str(folder.checkpoints)
    unset_paths: list[tuple[str, Any, str]] = [
        ("checkpoint.save", checkpoint, str(folder.checkpoints)),
        ("checkpoint.load", checkpoint, checkpoint.save or str(folder.checkpoints)),
        ("logger.tensorboard_dir", logger, str(folder.tensorboard)),
    ]
    for path, section, where in unset_paths:
        name = path.partition(".")[2]
        given = getattr(section, name)
        if path == "checkpoint.load" and checkpoint.save is None and why_not_a_checkpoint(Path(where)):
            continue  # a run without saves, in a folder without checkpoints: there is nothing to resume
        if not given and not (given is None and provenance.by_user(path)):
            setattr(section, name, where)
            provenance.note(path, f"resolve: {RUN_PATHS}")
            remember_resolved(config, path, where, rule=RUN_PATHS, of_run=True)
    for name in ("load", "pretrained_checkpoint"):
        named = getattr(checkpoint, name)
        if named and not is_url(named) and str(checkpoints_in(Path(named))) != str(Path(named)):
            # a run folder in the configuration means its checkpoints
            setattr(checkpoint, name, str(checkpoints_in(Path(named))))
