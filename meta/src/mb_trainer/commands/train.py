"""Implementation of `mb pretrain` and `mb finetune`."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import mb_host.trainer_api
import mb_verify.trainer_api
from mb_checkpoint.trainer_api import require_weights
from mb_config.trainer_api import ConfigRequest
from mb_launch import read_world, requested_port, set_omp_threads
from mb_launch.trainer_api import at_work, require_single_process, torchrun_environment
from mb_metrics.trainer_api import RankConsole, bench_callbacks
from mb_resilience.trainer_api import keep_run_alive, prepare_environment
from mb_schema.secrets import masked_argument
from mb_trainer.commands.errors import reported
from mb_trainer.commands.megatron_run import take_over
from mb_trainer.registry import REGISTRY
from mb_trainer.requests import read_request
from mb_trainer.run.complete_run import outcome_if_complete
from mb_trainer.run.settle import RunOptions, settle_job
from mb_trainer.run.trainer import train_job
from mb_trainer.run.user_code import NO_CODE
from mb_verify import callbacks_from_environment


def pretrain(
    arguments: Sequence[str],
    *,
    files: Sequence[Path],
    out: Path | None,
    nproc: int | None,
    resume_with_changes: bool,
    trust: Sequence[Path] = (),
    command: str = "pretrain",
    numa_binding: bool = True,
) -> int:
    """Read the request, train in this process or in `nproc` processes, and return the exit code.

    The command "finetune" requires existing weights to start from. Trusted folders are passed to the processes.
    """
    if nproc is not None:
        require_single_process(os.environ, option="--nproc")
    request = read_request(arguments, files=files)
    if command == "finetune":
        require_weights(request.config.checkpoint)
    prepare_environment(request.config.inprocess_restart)  # before the import of torch
    options = run_options(request, out=out, resume_with_changes=resume_with_changes)
    if nproc is None or nproc == 1:
        resume_command = os.environ.get(RESUME_COMMAND) or typed(os.environ)
        code = options.code.with_callbacks(recording_callbacks(os.environ))
        options = replace(options, code=code, resume_command=resume_command, process_ends=True)
        with at_work(os.environ):
            return keep_run_alive(
                lambda: reported(lambda: train_job(request.config, options).exit_code),
                request.config.inprocess_restart,
                environment=torchrun_environment(os.environ),
                exit_signals=[request.config.train.exit_signal],
            )
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc)}
    job = settle_job(request.config, replace(options, environment=world))
    if job.status.state == "complete" and outcome_if_complete(job, RankConsole()) is not None:
        return 0
    port = requested_port(os.environ)
    os.environ[RESUME_COMMAND] = typed(os.environ)
    set_omp_threads(os.environ, processes=nproc)  # torch, and with it the ranks, reads it at its import
    local = import_module("mb_trainer.local_launch")  # imports torch, therefore only after all checks
    ended: int = local.launch(
        [command, *worker_arguments(arguments, files, out, resume_with_changes, trust)],
        processes=nproc,
        port=port,
        exit_signal=request.config.train.exit_signal,
        folder=job.folder,
        # a launcher that maps GPUs itself gives each process a different GPU as its first one
        numa_binding=numa_binding and not request.config.dist.external_gpu_device_mapping,
    )
    return ended


def pretrain_from_megatron_lm(
    folder: Path,
    *,
    script: Path | None,
    variables: Sequence[str],
    ignore_unknown: bool,
    overrides: Sequence[str],
    out: Path | None,
    **options: Any,
) -> int:
    """Resume a run of Megatron-LM, and return the exit code. `options` are those of `pretrain`."""
    taken = take_over(
        folder,
        script=script,
        variables=variables,
        ignore_unknown=ignore_unknown,
        out=out,
        overrides=overrides,
    )
    if read_world(os.environ).rank == 0:
        print("\n".join(f"from Megatron-LM: {line}" for line in taken.lines), flush=True)
    return pretrain([*taken.arguments, *overrides], out=taken.out, **options)


def run_options(request: ConfigRequest, *, out: Path | None, resume_with_changes: bool) -> RunOptions:
    """Return the options of a run that a command starts, with the code of its recipe."""
    return RunOptions(
        name=request.name,
        out=out,
        provenance=request.provenance,
        code=NO_CODE if request.recipe is None else request.recipe.code or NO_CODE,
        resume_with_changes=resume_with_changes,
        notes=[] if request.base is None else [f"{request.name}: applied to {request.base}"],
    )


def recording_callbacks(environment: Mapping[str, str]) -> list[object]:
    """Return the callbacks that the environment requests: `mb verify-resume` and `mb bench` record their runs so."""

    def conditions() -> dict[str, str]:
        # both import torch, which a launcher of local ranks does not need
        arithmetic = mb_host.trainer_api.read_arithmetic()
        return {**mb_verify.trainer_api.conditions(), **arithmetic.as_text()}

    world = read_world(environment)
    recorders = callbacks_from_environment(
        environment, rank=world.rank, world_size=world.world_size, conditions=conditions
    )
    return [*recorders, *bench_callbacks(environment)]


RESUME_COMMAND = "MB_RESUME_COMMAND"
"""Environment variable that passes the command of the user to the started processes."""


def typed(environment: Mapping[str, str]) -> str:
    """Return the command as the user typed it, with `uv run` if that started it, and with masked secrets.

    `checkpoint.ckpt_step` is kept: it applies until a newer checkpoint is saved (`mb_checkpoint.release_ckpt_step`).
    """
    before = ["uv", "run"] if "UV_RUN_RECURSION_DEPTH" in environment else []
    return shlex.join([*before, "mb", *map(masked_argument, sys.argv[1:])])


def worker_arguments(
    arguments: Sequence[str],
    files: Sequence[Path],
    out: Path | None,
    resume_with_changes: bool,
    trust: Sequence[Path] = (),
) -> list[str]:
    """Return the arguments of the same command without --nproc."""
    options = [f"--config={file}" for file in files]
    options += [] if out is None else [f"--out={out}"]
    options += ["--resume-with-changes"] if resume_with_changes else []
    options += [f"--trust={folder}" for folder in trust]
    options += [f"--import={module}" for module in REGISTRY.imported]
    return [*options, "--", *arguments]


def pretrain_command(
    settings: Sequence[str], run: Path, *, files: Sequence[Path] = (), processes: int = 1
) -> list[str]:
    """Return the command of a run with these settings in a folder, for a command that measures or compares it."""
    ranks = [f"--nproc={processes}"] if processes > 1 else []
    given = worker_arguments(settings, files, run, False)
    return [sys.executable, "-m", "mb_trainer", "pretrain", *ranks, *given]
