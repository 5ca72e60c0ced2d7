"""Start of a distributed run: ranks from torchrun, srun or N local processes, process groups, seeds, first failure.

The same script runs alone, under torchrun and under srun:

>>> from mb_launch import read_world
>>> read_world({})                                       # python train.py
World(rank=0, world_size=1, local_rank=0, attempt='0', address=None)
>>> read_world({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}).rank                 # torchrun train.py
3
>>> step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-08]"}
>>> task = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
>>> read_world({**step, **task}).address                 # srun python train.py
'gpu07:15007'
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_launch.cloudai.command import IncompleteLaunchError as IncompleteLaunchError
    from mb_launch.cloudai.command import SystemSettings as SystemSettings
    from mb_launch.cloudai.command import launcher_arguments as launcher_arguments
    from mb_launch.cloudai.command import masked_command_line as masked_command_line
    from mb_launch.cloudai.command import shell_line as shell_line
    from mb_launch.cloudai.constraints import ConstraintViolation as ConstraintViolation
    from mb_launch.cloudai.constraints import LaunchRequest as LaunchRequest
    from mb_launch.cloudai.constraints import SweepError as SweepError
    from mb_launch.cloudai.constraints import read_launch_request as read_launch_request
    from mb_launch.cloudai.constraints import violated_constraints as violated_constraints
    from mb_launch.cloudai.outcome import JobStatusResult as JobStatusResult
    from mb_launch.cloudai.outcome import SeriesStatistics as SeriesStatistics
    from mb_launch.cloudai.outcome import extract_mbridge_metrics as extract_mbridge_metrics
    from mb_launch.cloudai.outcome import metric_of_run as metric_of_run
    from mb_launch.cloudai.outcome import was_run_successful as was_run_successful
    from mb_launch.cloudai.outcome import write_report as write_report
    from mb_launch.groups.default_group import barrier as barrier
    from mb_launch.groups.default_group import default_process_group as default_process_group
    from mb_launch.groups.default_group import default_store as default_store
    from mb_launch.groups.default_group import pick_device as pick_device
    from mb_launch.groups.seeds import seed_libraries as seed_libraries
    from mb_launch.hardware.gpus import GpuFacts as GpuFacts
    from mb_launch.hardware.gpus import GpuSources as GpuSources
    from mb_launch.hardware.gpus import describe_gpus as describe_gpus
    from mb_launch.hardware.gpus import read_gpus as read_gpus
    from mb_launch.hardware.gpus import visible_gpus as visible_gpus
    from mb_launch.hardware.numa import NumaBinding as NumaBinding
    from mb_launch.hardware.numa import bind_this_process as bind_this_process
    from mb_launch.hardware.numa import describe_bindings as describe_bindings
    from mb_launch.hardware.numa import set_numa_environment as set_numa_environment
    from mb_launch.mcore import megatron_groups as megatron_groups
    from mb_launch.mcore import seed_model_parallel as seed_model_parallel
    from mb_launch.ranks.failures import EndedProcess as EndedProcess
    from mb_launch.ranks.failures import Failure as Failure
    from mb_launch.ranks.failures import common_rerun_code as common_rerun_code
    from mb_launch.ranks.failures import first_failure as first_failure
    from mb_launch.ranks.failures import print_once as print_once
    from mb_launch.ranks.failures import read_failures as read_failures
    from mb_launch.ranks.failures import record_failure as record_failure
    from mb_launch.ranks.failures import report_failure as report_failure
    from mb_launch.ranks.forked_ranks import ForkedProgram as ForkedProgram
    from mb_launch.ranks.forked_ranks import can_fork_ranks as can_fork_ranks
    from mb_launch.ranks.local_environment import PortError as PortError
    from mb_launch.ranks.local_environment import keep_collectives_local as keep_collectives_local
    from mb_launch.ranks.local_environment import requested_port as requested_port
    from mb_launch.ranks.local_environment import set_omp_threads as set_omp_threads
    from mb_launch.ranks.local_environment import set_unset_variables as set_unset_variables
    from mb_launch.ranks.local_ranks import LaunchResult as LaunchResult
    from mb_launch.ranks.local_ranks import launch_local as launch_local
    from mb_launch.rules import RULES as RULES
    from mb_launch.settings import GroupOptions as GroupOptions
    from mb_launch.settings import GroupSettings as GroupSettings
    from mb_launch.settings import ParallelDegrees as ParallelDegrees
    from mb_launch.settings import ParallelSizes as ParallelSizes
    from mb_launch.settings import SeedOptions as SeedOptions
    from mb_launch.settings import SeedSettings as SeedSettings
    from mb_launch.world import World as World
    from mb_launch.world import WorldError as WorldError
    from mb_launch.world import is_launched as is_launched
    from mb_launch.world import read_local_world_size as read_local_world_size
    from mb_launch.world import read_world as read_world
    from mb_launch.world import require_address as require_address
    from mb_schema.rules import Rule as Rule

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
