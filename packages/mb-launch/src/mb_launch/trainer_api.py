"""What the trainer imports from mb_launch beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_launch.cli import app as app
    from mb_launch.cli.app import Command as Command
    from mb_launch.cli.app import LaunchOptions as LaunchOptions
    from mb_launch.cli.app import NemoRunOptions as NemoRunOptions
    from mb_launch.cli.app import import_door as import_door
    from mb_launch.cloudai.constraints import explain_coverage as explain_coverage
    from mb_launch.errors import LaunchCheckError as LaunchCheckError
    from mb_launch.errors import SlurmJobError as SlurmJobError
    from mb_launch.hardware.gpus import THIS_MACHINE as THIS_MACHINE
    from mb_launch.hardware.gpus import visible_gpu_names as visible_gpu_names
    from mb_launch.mcore import reset_megatron as reset_megatron
    from mb_launch.ranks.failures import ERROR_FOLDER as ERROR_FOLDER
    from mb_launch.ranks.failures import FAILED as FAILED
    from mb_launch.ranks.failures import stop_was_requested as stop_was_requested
    from mb_launch.ranks.failures import timed_failure as timed_failure
    from mb_launch.ranks.left_ranks import at_work as at_work
    from mb_launch.slurm.job import LaunchSize as LaunchSize
    from mb_launch.slurm.job import SlurmJob as SlurmJob
    from mb_launch.slurm.options import JobOptions as JobOptions
    from mb_launch.slurm.options import option as option
    from mb_launch.world import require_single_process as require_single_process
    from mb_launch.world import torchrun_environment as torchrun_environment

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
