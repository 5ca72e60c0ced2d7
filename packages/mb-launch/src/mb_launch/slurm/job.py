"""Options of a Slurm job, and their checks. The standard library only."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mb_launch.errors import SlurmJobError
from mb_launch.secret_names import is_secret_variable, secret_argument

_TIME = re.compile(r"\d+(-\d+(:\d+){0,2}|(:\d+){0,2})")
_NAME = re.compile(r"[\w.@+-]+")
_LIST = re.compile(r"[\w.@+,-]+")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")

LEAD_SECONDS = 120
"""Shortest time between the signal and the time limit, unless `SlurmJob.signal_seconds` is set."""
STEPS_SECONDS = 60
"""Time for the steps that end before the ranks have agreed to stop, if it is not predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """Resources and behaviour of a Slurm job.

    Raises:
        SlurmJobError: A value is out of its range, cannot be written to a script, or is a secret.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    """GPUs of each node, each with one rank; 0: none are requested."""
    tasks_per_node: int | None = None
    """Ranks of each node; None: one for each GPU, or one."""
    cpus_per_task: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    """Time limit in Slurm's notation, such as 04:00:00; None: that of the partition."""
    job_name: str | None = None
    """Name of the job; jobs of one name and user run one after another. None: name of the run folder."""
    gpu: str | None = None
    """Name of the GPUs, for the check before the launch and for `gpu_environment`; None: neither."""
    signal_seconds: int | None = None
    """Seconds before the time limit at which the ranks are requested to save and exit; 0: never; None: two minutes, and
    more for long saves (`lead_seconds`)."""
    save_seconds: int | None = None
    """Time until a checkpoint is complete, for `lead_seconds` and for ft_launcher's time limits of saving and loading;
    None: not known."""
    requeue: bool = True
    """Whether a job that was preempted, reached its time limit or lost a node enters the queue again."""
    chain: int = 1
    """Number of jobs to queue, of which each resumes where its predecessor ended."""
    ft_launcher: bool = False
    """Start the ranks of each node by NVRx's ft_launcher, which restarts all ranks in place if one fails or hangs."""
    max_restarts: int | None = None
    """Restarts by ft_launcher before the job fails; None: three."""
    container_image: str | None = None
    """Image for pyxis; None: no container."""
    container_mounts: str | None = None
    """Mounts in addition to the working directory and the run folder: SRC:DST[,...]."""
    env: Sequence[str] = ()
    """Environment variables: NAME=VALUE, or NAME to pass the value of the submitting shell."""
    sbatch: Sequence[str] = ()
    """Further options of sbatch, such as --exclusive, that no field sets."""

    def __post_init__(self) -> None:
        for name in ("nodes", "tasks_per_node", "cpus_per_task", "chain"):
            self._require_number(name, least=1)
        for name in ("gpus_per_node", "signal_seconds", "save_seconds", "max_restarts"):
            self._require_number(name, least=0)
        for name in ("requeue", "ft_launcher"):
            if type(getattr(self, name)) is not bool:
                raise _bad(name, getattr(self, name), "is neither true nor false", "Set it to true or false.")
        if self.max_restarts is not None and not self.ft_launcher:
            raise _bad(
                "max_restarts", self.max_restarts, "has no effect without ft_launcher", "Set ft_launcher."
            )
        self._check_texts()
        if self.signal_seconds is not None and self.signal_seconds > _MAX_SIGNAL_SECONDS:
            fix = f"Set at most {_MAX_SIGNAL_SECONDS} seconds."
            raise _bad("signal_seconds", self.signal_seconds, "is more than Slurm supports", fix)
        self._check_lists()

    @property
    def lead_seconds(self) -> int:
        """Seconds between the signal and the time limit: for the steps in flight and a save, at least two minutes."""
        if self.signal_seconds is not None:
            return self.signal_seconds
        return min(max(LEAD_SECONDS, STEPS_SECONDS + (self.save_seconds or 0)), _MAX_SIGNAL_SECONDS)

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node."""
        return self.tasks_per_node or self.gpus_per_node or 1

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.nodes * self.ranks_per_node

    def _require_number(self, name: str, *, least: int) -> None:
        value = getattr(self, name)
        unset = value is None and name in _OPTIONAL_NUMBERS
        if not unset and (type(value) is not int or value < least):
            raise _bad(name, value, f"is not a whole number of at least {least}", "Set such a number.")

    def _check_texts(self) -> None:
        for name, pattern in _PATTERNS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or pattern.fullmatch(value) is None):
                raise _bad(name, value, "cannot be written to an sbatch script", _EXAMPLES[name])
        if self.container_mounts is not None and self.container_image is None:
            fix = "Set container_image, or leave the mounts out."
            raise _bad("container_mounts", self.container_mounts, "has no effect without an image", fix)

    def _check_lists(self) -> None:
        """Check environment variables and further options of sbatch.

        Raises:
            SlurmJobError: One of them has another form, or the value of a variable is a secret.
        """
        for name in ("env", "sbatch"):
            values = getattr(self, name)
            if isinstance(values, str) or not all(isinstance(value, str) for value in values):
                raise _bad(name, values, "is not a list of texts", f"Write {name}: [...].")
        for setting in self.env:
            name, equals, value = setting.partition("=")
            if _VARIABLE.fullmatch(name) is None or "\n" in value:
                raise _bad("env", name, "is not a variable", "Write NAME=VALUE or NAME.")
            if equals and is_secret_variable(name, value):
                raise _bad(
                    "env",
                    f"{name}=***",
                    "looks like a secret, which the script would contain in plain text",
                    f"Set it in the shell that submits, and write --env {name}: sbatch passes it by name.",
                )
        for option in self.sbatch:
            if re.fullmatch(r"""--[a-z][a-z-]*(=[^\s#'"]+)?""", option) is None:
                fix = "Write --NAME or --NAME=VALUE, without spaces, quotes and #."
                raise _bad("sbatch", option, "is not an option of sbatch", fix)
            field = _FIELD_OF_OPTION.get(option.partition("=")[0])
            if field is not None:
                reason = f"would replace {field}, with which the job is checked and its ranks are started"
                raise _bad("sbatch", option, reason, f"Set {field}.")


_MAX_SIGNAL_SECONDS = 65_535
_FIELD_OF_OPTION = {
    **{
        f"--{name.replace('_', '-')}": name
        for name in (
            "nodes",
            "gpus_per_node",
            "cpus_per_task",
            "partition",
            "account",
            "qos",
            "time",
            "job_name",
        )
    },
    **dict.fromkeys(("--ntasks", "--ntasks-per-node"), "tasks_per_node"),
    "--gpus": "gpus_per_node",
    "--signal": "signal_seconds",
    **dict.fromkeys(("--requeue", "--no-requeue"), "requeue"),
    "--export": "env",
}
"""Option of sbatch -> field that sets it."""
_OPTIONAL_NUMBERS = ("tasks_per_node", "cpus_per_task", "signal_seconds", "save_seconds", "max_restarts")
_PATTERNS = {
    "partition": _LIST,
    "account": _NAME,
    "qos": _NAME,
    "job_name": _NAME,
    "gpu": re.compile(r"\w[\w .-]*"),
    "time": _TIME,
    "container_image": re.compile(r"\S+"),
    "container_mounts": re.compile(r"[^\s,:]+:[^\s,]+(,[^\s,:]+:[^\s,]+)*"),
}
_EXAMPLES = {
    "time": "Write minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS, such as 04:00:00.",
    "container_mounts": "Write SRC:DST, several with commas.",
    **dict.fromkeys(("partition", "account", "qos", "job_name"), "Use letters, digits and . _ - + @."),
    "gpu": "Write a name such as h100.",
    "container_image": "Write the name of an image or a file, without spaces.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSize:
    """Processes of a launch, for the check before it."""

    nodes: int
    ranks_per_node: int
    gpu: str | None = None
    """Name of the GPUs; None: not checked against one."""
    ft_launcher: bool = False
    """Whether NVRx's ft_launcher starts the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRun:
    """Command that a job starts on every rank, and the folder of its run.

    Raises:
        SlurmJobError: The command is empty, or an argument looks like a secret.
    """

    command: Sequence[str]
    folder: Path
    """Absolute path; the number of the job and the logs of the ranks are stored in its subfolder `slurm`."""
    work_dir: Path
    """Absolute path of the directory in which the ranks start."""

    def __post_init__(self) -> None:
        if not self.command:
            raise SlurmJobError("command: is missing. Write it after --, such as -- python train.py.")
        secret = secret_argument(list(self.command))
        if secret is not None:
            raise SlurmJobError(
                f"command: {secret} looks like a secret, which the script would contain in plain text. Set the "
                "variable of the service in the shell that submits, and pass it with --env NAME."
            )
        for name, path in (("run folder", self.folder), ("working directory", self.work_dir)):
            if re.search(r"""[\s%\\,:#'"]""", str(path)):
                raise SlurmJobError(
                    f"{name}: {str(path)!r} has a space, a quote or one of % \\ , : # in it, which Slurm interprets. "
                    "Choose another folder."
                )

    @property
    def logs(self) -> Path:
        """Folder of the job numbers and logs."""
        return self.folder / "slurm"


def _bad(name: str, value: object, problem: str, fix: str) -> SlurmJobError:
    return SlurmJobError(f"{name}: {value!r} {problem}. {fix}")
