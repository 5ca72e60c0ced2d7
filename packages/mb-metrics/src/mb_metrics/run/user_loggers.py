"""Loggers for the user's own code, of the kinds and the settings that section `logger` enables.

They are the objects that Megatron-Bridge's GlobalState has: TensorBoard's SummaryWriter, the modules wandb and mlflow
with an active run, an experiment of Comet. The sinks of a run write to files and runs of their own.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mb_metrics.config import LoggerConfig
from mb_metrics.redact import hide_secrets


def open_tensorboard(section: LoggerConfig) -> Any | None:
    """Return torch's SummaryWriter in `tensorboard_dir`; None without it."""
    if section.tensorboard_dir is None:
        return None
    tensorboard = import_module("torch.utils.tensorboard")
    return tensorboard.SummaryWriter(
        log_dir=section.tensorboard_dir, max_queue=section.tensorboard_queue_size
    )


def open_wandb(
    section: LoggerConfig, *, folder: str | None = None, config: Mapping[str, object] | None = None
) -> Any | None:
    """Return the module wandb with an active run, which is opened unless there is one; None without a project.

    Args:
        section: Project, name, entity and folder.
        folder: Folder of the run's files, if `wandb_save_dir` is not set.
        config: Settings of the job, shown with the run; secrets are masked.

    Raises:
        SectionError, MissingPackageError: See `LoggerConfig.finalize`.
    """
    if section.wandb_project is None:
        return None
    section.finalize()
    wandb = import_module("wandb")
    if wandb.run is None:
        wandb.init(
            dir=section.wandb_save_dir or folder,
            name=section.wandb_exp_name,
            project=section.wandb_project,
            entity=section.wandb_entity,
            config=hide_secrets(config or {}),
        )
    return wandb


def open_mlflow(section: LoggerConfig, *, config: Mapping[str, object] | None = None) -> Any | None:
    """Return the module mlflow with an active run, which is opened unless there is one; None without an experiment.

    The tags are set in either case.

    Args:
        section: Experiment, name, tags, description and server.
        config: Settings of the job, logged as parameters of a run that is opened here; secrets are masked.

    Raises:
        SectionError, MissingPackageError: See `LoggerConfig.finalize`.
    """
    if section.mlflow_experiment is None:
        return None
    section.finalize()
    mlflow = import_module("mlflow")
    if section.mlflow_tracking_uri:
        mlflow.set_tracking_uri(section.mlflow_tracking_uri)
    mlflow.set_experiment(section.mlflow_experiment)
    if mlflow.active_run() is None:
        mlflow.start_run(
            run_name=section.mlflow_run_name,
            tags=section.mlflow_tags or None,
            description=section.mlflow_description,
        )
        mlflow.log_params({name: str(value) for name, value in hide_secrets(config or {}).items()})
    elif section.mlflow_tags:
        mlflow.set_tags(section.mlflow_tags)
    return mlflow


def open_comet(section: LoggerConfig, *, config: Mapping[str, object] | None = None) -> Any | None:
    """Return a new experiment of Comet; None without a project.

    Args:
        section: Project, name, workspace, tags and key.
        config: Settings of the job, logged as parameters; secrets are masked.

    Raises:
        SectionError, MissingPackageError: See `LoggerConfig.finalize`.
    """
    if section.comet_project is None:
        return None
    section.finalize()
    comet = import_module("comet_ml")
    experiment = comet.Experiment(
        project_name=section.comet_project,
        workspace=section.comet_workspace,
        api_key=section.comet_api_key,
        auto_metric_logging=False,
    )
    experiment.set_name(section.comet_experiment_name)
    if section.comet_tags:
        experiment.add_tags(section.comet_tags)
    experiment.log_parameters(hide_secrets(config or {}))
    return experiment
