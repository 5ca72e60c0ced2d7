"""Saved settings of a run, and the fields that are compared with those of a run that would resume it."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import mb_checkpoint.trainer_api
import mb_config.trainer_api
import mb_data.trainer_api
import mb_metrics.trainer_api
import mb_resilience.trainer_api
from mb_checkpoint import CheckpointConfig
from mb_checkpoint.trainer_api import StoredRunConfig, is_same_folder, loads_from, resumed_run_configs
from mb_config import SavedSettings
from mb_config.trainer_api import SavedSettingsError
from mb_metrics.trainer_api import RunFolder
from mb_resilience import InProcessRestartConfig
from mb_trainer.errors import RunFolderError

NOT_SETTINGS = frozenset(
    {
        "checkpoint.save",
        "checkpoint.load",
        "checkpoint.ckpt_step",
        "checkpoint.trust",
        "checkpoint.fully_parallel_load",
        "tensor_inspect.allow_custom_feature_dirs",
        "tokenizer.trust_remote_code",
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
"""Fields derived from the folder, the machine or a resume, consents, how files are read, the start and the end of a
run, restarts, and evaluation-only mode; they do not make two runs different.
"""

PATH_FIELDS: tuple[str, ...] = (
    *mb_config.trainer_api.PATH_FIELDS,
    *mb_data.trainer_api.PATH_FIELDS,
    *mb_checkpoint.trainer_api.PATH_FIELDS,
    *mb_metrics.trainer_api.PATH_FIELDS,
    *mb_resilience.trainer_api.PATH_FIELDS,
)
"""Fields that hold a path to files or folders, of every section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSource:
    """Saved settings of a run, with its name in messages."""

    saved: SavedSettings
    name: str
    """Run folder or checkpoint."""
    other: str = "another folder with --out"
    """What a separate run needs."""
    is_resumed: bool = True
    """Whether the run continues; False: a checkpoint of another run, from which this one branches off."""


def settings_sources(folder: RunFolder, checkpoint: CheckpointConfig) -> list[SettingsSource]:
    """Return the settings of the run that a command resumes: those in its folder, and in the newest checkpoint.

    The checkpoint counts if the folder has none, or if its run saves to other checkpoints than the command loads.
    """
    saved = saved_settings(folder)
    sources = [SettingsSource(saved=saved, name=str(folder.path))]
    is_own = loads_from(checkpoint, checkpoint.save) or loads_from(checkpoint, str(folder.checkpoints))
    if not saved.file.exists() or (is_own and not _saves_to(folder, saved, checkpoint)):
        separate = "other folders with --out and checkpoint.save"
        for stored in _readable_settings(checkpoint):
            name = str(stored.file.parent)
            return [*sources, SettingsSource(saved=stored, name=name, other=separate, is_resumed=is_own)]
    return sources


def settings_in_storage(stored: StoredRunConfig) -> SettingsSource:
    """Return the settings of a checkpoint in a storage."""
    file = RunFolder(Path(stored.source)).run_config
    return SettingsSource(
        saved=SavedSettings(file=file, content=stored.content, ignored=NOT_SETTINGS),
        name=stored.source,
        other="another URL with checkpoint.storage",
    )


def saved_settings(folder: RunFolder) -> SavedSettings:
    """Return the settings of the run in a folder, which may be missing."""
    return SavedSettings(
        file=folder.run_config,
        ignored=NOT_SETTINGS,
        fix="Restore the file, or remove it to compare with the settings in the newest checkpoint instead, or give "
        "another folder with --out.",
    )


def checkpoints_of_run(path: Path) -> Path:
    """Return the folder in which a run saves, by the settings in its folder; another folder unchanged."""
    folder = RunFolder(path)
    save = saved_settings(folder).section("checkpoint").get("save")
    is_run = folder.events.is_file() and not folder.checkpoints.exists()
    return Path(save) if save and is_run else path


def _saves_to(folder: RunFolder, saved: SavedSettings, checkpoint: CheckpointConfig) -> bool:
    """Return whether the run in a folder saves to the folder of checkpoints of a configuration, by its settings."""
    own = str(folder.checkpoints)
    return is_same_folder(str(saved.section("checkpoint").get("save") or own), checkpoint.save or own)


def _readable_settings(checkpoint: CheckpointConfig) -> Iterator[SavedSettings]:
    """Yield the settings of the checkpoints that a run can resume from, newest first, but damaged ones."""
    for file in resumed_run_configs(checkpoint):
        saved = SavedSettings(file=file, ignored=NOT_SETTINGS)
        with suppress(SavedSettingsError):  # the load skips this checkpoint
            saved.read()
            yield saved


def in_use_error(folder: RunFolder) -> RunFolderError:
    """Return the error for a run folder that another trainer holds."""
    return RunFolderError(
        f"{folder.path}: another trainer is at work in this run folder; two would overwrite each other's checkpoints "
        "and mix their metrics. Wait until it has ended, or choose another folder with --out."
    )
