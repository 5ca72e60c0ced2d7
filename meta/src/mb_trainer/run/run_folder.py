"""Run folder: its saved settings, and the fields that are compared with those of a run that would resume it."""

from dataclasses import fields

import mb_checkpoint.trainer_api
import mb_config.trainer_api
import mb_data.trainer_api
import mb_metrics.trainer_api
import mb_resilience.trainer_api
from mb_config import SavedSettings
from mb_metrics.trainer_api import RunFolder
from mb_resilience import InProcessRestartConfig
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
        "inprocess_restart",
        *(f"inprocess_restart.{field.name}" for field in fields(InProcessRestartConfig)),
    }
)
"""Fields derived from the folder, the machine or a resume, consents, the start and the end of a run, restarts, and
evaluation-only mode; they do not make two runs different.
"""

PATH_FIELDS: tuple[str, ...] = (
    *mb_config.trainer_api.PATH_FIELDS,
    *mb_data.trainer_api.PATH_FIELDS,
    *mb_checkpoint.trainer_api.PATH_FIELDS,
    *mb_metrics.trainer_api.PATH_FIELDS,
    *mb_resilience.trainer_api.PATH_FIELDS,
)
"""Fields that hold a path to files or folders, of every section."""


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
