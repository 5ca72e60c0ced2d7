"""Options of the command `slurm`, one for each field of `SlurmJob`. Requires typer (extra `cli`)."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

_OPTIONS: Mapping[str, tuple[type, str, str]] = {
    "nodes": (int, "--nodes", "Nodes; default 1."),
    "gpus_per_node": (int, "--gpus-per-node", "GPUs of each node, one rank each; default 0."),
    "tasks_per_node": (int, "--tasks-per-node", "Ranks of each node; default: its GPUs, or 1."),
    "cpus_per_task": (int, "--cpus-per-task", "CPU cores of each rank."),
    "partition": (str, "--partition", "Partition."),
    "account": (str, "--account", "Account."),
    "qos": (str, "--qos", "Quality of service."),
    "time": (str, "--time", "Time limit, such as 04:00:00."),
    "job_name": (str, "--job-name", "Name; jobs of one name run one by one. Default: the folder's."),
    "gpu": (
        str,
        "--gpu",
        "GPUs of the nodes, such as h100, for the check before the launch and their environment.",
    ),
    "signal_seconds": (
        int,
        "--signal-seconds",
        "Save so long before the limit; default 120, more for long saves.",
    ),
    "save_seconds": (int, "--save-seconds", "Time until a checkpoint is complete; default: as predicted."),
    "requeue": (bool, "--requeue/--no-requeue", "Queue again after a preemption; default: yes."),
    "chain": (int, "--chain", "Jobs to queue; each resumes the run. Default 1."),
    "ft_launcher": (
        bool,
        "--ft-launcher",
        "Start the ranks by NVRx's ft_launcher, which restarts them in place.",
    ),
    "max_restarts": (int, "--max-restarts", "Restarts by ft_launcher; default 3."),
    "container_image": (str, "--container-image", "Image for pyxis."),
    "container_mounts": (str, "--container-mounts", "SRC:DST, several with commas."),
    "env": (list[str], "--env", "NAME=VALUE, or NAME to pass its value; repeatable."),
    "sbatch": (list[str], "--sbatch", "Another option of sbatch, as --sbatch=--NAME; repeatable."),
}
"""Field of `SlurmJob` -> type, option and help."""


def option(name: str, text: str, **more: Any) -> Any:
    """Return an option of typer. Its default is not printed: it is None, and the text names what None means.

    Args:
        name: Option, such as `--nodes`.
        text: Help.
        more: Further arguments of `typer.Option`.
    """
    return typer.Option(name, help=text, show_default=False, **more)


def job_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each field of `SlurmJob` to a command, in its help after its first two options.

    Args:
        function: The command, all of whose parameters are passed as keywords. It receives the options that the user has
            given as the parameter `given`: field to value.
    """

    @wraps(function)
    def command(**values: Any) -> None:
        given = {name: values.pop(name) for name in _OPTIONS}
        function(**values, given={name: value for name, value in given.items() if value is not None})

    own = [each for each in inspect.signature(function).parameters.values() if each.name != "given"]
    added = [_parameter(name, *described) for name, described in _OPTIONS.items()]
    parameters = [*own[:2], *added, *own[2:]]
    # typer reads the signature for the order, and the annotations for the types
    setattr(  # noqa: B010 - functions have no such attribute for a type checker
        command,
        "__signature__",
        inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]),
    )
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(name: str, value_type: Any, flag: str, text: str) -> inspect.Parameter:
    """Return the parameter of a command for a field of `SlurmJob`; None: the option is not given."""
    annotation = Annotated[value_type | None, option(flag, text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
