"""Options of the command `slurm`, one for each field of `SlurmJob`. Requires typer (extra `cli`)."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer


def option(name: str, text: str, **more: Any) -> Any:
    """Return an option of typer. Its default is not printed: it is None, and the text names what None means.

    Args:
        name: Option, such as `--nodes`.
        text: Help.
        more: Further arguments of `typer.Option`.
    """
    return typer.Option(name, help=text, show_default=False, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options with the names of the fields of `SlurmJob`; None: not given."""

    nodes: Annotated[int | None, option("--nodes", "Nodes; default 1.")] = None
    gpus_per_node: Annotated[
        int | None, option("--gpus-per-node", "GPUs of each node, one rank each; default 0.")
    ] = None
    tasks_per_node: Annotated[
        int | None, option("--tasks-per-node", "Ranks of each node; default: its GPUs, or 1.")
    ] = None
    cpus_per_task: Annotated[int | None, option("--cpus-per-task", "CPU cores of each rank.")] = None
    partition: Annotated[str | None, option("--partition", "Partition.")] = None
    account: Annotated[str | None, option("--account", "Account.")] = None
    qos: Annotated[str | None, option("--qos", "Quality of service.")] = None
    time: Annotated[str | None, option("--time", "Time limit, such as 04:00:00.")] = None
    job_name: Annotated[
        str | None, option("--job-name", "Name; jobs of one name run one by one. Default: the folder's.")
    ] = None
    gpu: Annotated[
        str | None,
        option(
            "--gpu", "GPUs of the nodes, such as h100, for the check before the launch and their environment."
        ),
    ] = None
    signal_seconds: Annotated[
        int | None,
        option("--signal-seconds", "Save so long before the limit; default 120, more for long saves."),
    ] = None
    save_seconds: Annotated[
        int | None, option("--save-seconds", "Time until a checkpoint is complete; default: as predicted.")
    ] = None
    requeue: Annotated[
        bool | None, option("--requeue/--no-requeue", "Queue again after a preemption; default: yes.")
    ] = None
    chain: Annotated[int | None, option("--chain", "Jobs to queue; each resumes the run. Default 1.")] = None
    ft_launcher: Annotated[
        bool | None,
        option("--ft-launcher", "Start the ranks by NVRx's ft_launcher, which restarts them in place."),
    ] = None
    max_restarts: Annotated[int | None, option("--max-restarts", "Restarts by ft_launcher; default 3.")] = (
        None
    )
    container_image: Annotated[str | None, option("--container-image", "Image for pyxis.")] = None
    container_mounts: Annotated[str | None, option("--container-mounts", "SRC:DST, several with commas.")] = (
        None
    )
    env: Annotated[
        list[str] | None, option("--env", "NAME=VALUE, or NAME to pass its value; repeatable.")
    ] = None
    sbatch: Annotated[
        list[str] | None, option("--sbatch", "Another option of sbatch, as --sbatch=--NAME; repeatable.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the options that the user has given, by the field of `SlurmJob`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
