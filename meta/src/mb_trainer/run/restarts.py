"""Runs with in-process restarts: each attempt resumes from the newest checkpoint. Imports NVRx."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

from mb_config import ConfigError, Provenance
from mb_config.trainer_api import TargetMachine, largest_world_size
from mb_launch.trainer_api import reset_megatron, torchrun_environment
from mb_loop import TrainOutcome
from mb_loop.trainer_api import SPARE
from mb_metrics.trainer_api import RankConsole
from mb_resilience import InProcessRestartConfig, RestartAttempt
from mb_resilience.trainer_api import run_with_restarts
from mb_trainer.config import ConfigContainer
from mb_trainer.run.completion import complete
from mb_trainer.run.preflight import all_checks, target_facts
from mb_trainer.run.settle import Job, settle_job


def train_with_restarts(
    job: Job, *, given: ConfigContainer, train: Callable[..., TrainOutcome]
) -> TrainOutcome:
    """Call `train` for each attempt of a job that is settled for all processes. Collective over all processes.

    `given` is the configuration before the job was settled.
    """
    complete(given, job.folder, Provenance.of(given), for_any_start=True)
    section = given.inprocess_restart or InProcessRestartConfig()
    facts = target_facts(TargetMachine(), given.env_vars)
    environment = torchrun_environment(job.options.environment)

    def attempt(mine: RestartAttempt) -> TrainOutcome:
        name = f"{job.world.attempt}.{mine.number}"
        world = replace(job.world, rank=mine.rank, world_size=mine.world_size, attempt=name)
        console = RankConsole.of(world, style=given.logger.console)
        current, started = job, job.started
        if mine.number > 0:
            started = time.time()
            console.print(f"in-process restart {mine.number}: {'; '.join(map(str, mine.faults))}")
            config = deepcopy(given)
            config.inprocess_restart = replace(section, active_world_size=mine.world_size)
            ranks = mine.variables if job.world.world_size > 1 else {}
            current = settle_job(config, replace(job.options, environment=environment | ranks))
        return train(replace(current, world=world, attempt=mine, started=started), console=console)

    outcome = run_with_restarts(
        attempt,
        section,
        finalize=[reset_megatron],
        usable_world_size=lambda ranks: largest_world_size(given, all_checks(), facts=facts, at_most=ranks),
        is_final=lambda error: isinstance(error, ConfigError) or getattr(error, "bad_input", False),
        exit_signals=[job.config.train.exit_signal],
        environment=environment,
    )
    return SPARE if outcome is None else outcome
