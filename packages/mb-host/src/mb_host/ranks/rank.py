"""Program of one rank: run the launcher's tasks until it closes the connection.

The fork server imports this module before it forks ranks; a spawned rank imports it first.
"""

import faulthandler
import functools
import gc
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mb_host.installation import install
from mb_host.ranks.function_reference import load
from mb_host.ranks.messages import ADDRESS, RankOutcome, RankSpec, RankTask

_REPORT = install()  # before any module that imports Megatron

# State that a run leaves in Megatron: (module, function that clears it). Method caches reference modules.
_MEGATRON_STATE = (
    ("megatron.core.parallel_state", "destroy_model_parallel"),
    ("megatron.core.num_microbatches_calculator", "destroy_num_microbatches_calculator"),
    ("megatron.core.rerun_state_machine", "destroy_rerun_state_machine"),
    ("megatron.core.transformer.moe.moe_logging", "destroy_moe_metrics_tracker"),
    ("megatron.core.transformer.multi_token_prediction", "MTPLossLoggingHelper.tracker.clear"),
    ("megatron.core.models.common.embeddings.rotary_pos_embedding", "RotaryEmbedding.forward.cache_clear"),
    (
        "megatron.core.models.common.embeddings.yarn_rotary_pos_embedding",
        "YarnRotaryEmbedding.forward.cache_clear",
    ),
    ("mb_host.megatron.mimo_bridge", "clear_bridge_groups"),
)


def main(
    spec: RankSpec,
    connection: "Connection[RankOutcome, RankTask | None]",
    *,
    output: int,
    errors: int,
    dump: int,
) -> None:
    """Serve the launcher at the other end of `connection` until it sends None.

    A fatal signal (including the launcher's SIGABRT) writes the stacks of all threads to `dump`. When the launcher
    dies, this rank kills its process group.
    """
    os.setsid()
    faulthandler.enable(file=dump, all_threads=True)
    threading.Thread(target=_die_with_launcher, daemon=True).start()
    _set_up_process(spec, output=output, errors=errors)
    try:
        connection.send(_prepare(spec))
        while (task := connection.recv()) is not None:
            connection.send(_run_task(task, rank=spec.rank, world_size=spec.world_size))
    except (EOFError, OSError):  # the launcher is dead, which may be seen here before the thread sees it
        os.killpg(0, signal.SIGKILL)
    _leave_groups()


def _die_with_launcher() -> None:
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    launcher.join()
    os.killpg(0, signal.SIGKILL)


def _set_up_process(spec: RankSpec, *, output: int, errors: int) -> None:
    """Set up in a forked process what a new interpreter would have."""
    gc.freeze()  # otherwise a collection would write to, and so copy, every page of the fork server
    for received, descriptor in ((output, 1), (errors, 2)):
        if received != descriptor:  # a new interpreter has them already
            os.dup2(received, descriptor)
            os.close(received)
    os.chdir(spec.folder)
    ranks = {"RANK": str(spec.rank), "LOCAL_RANK": str(spec.rank), "WORLD_SIZE": str(spec.world_size)}
    os.environ.clear()
    os.environ.update({**spec.environment, **ranks})
    importlib.invalidate_caches()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # as its import does; Python seeds its own generator after a fork


def _prepare(spec: RankSpec) -> RankOutcome:
    """Import modules; the result is why ranks cannot be forked, or None."""
    try:
        obstacle = fork_obstacle() if spec.start_method == "forkserver" else None
        for name in () if obstacle else spec.imports:
            import_module(name)
    except BaseException as error:  # noqa: BLE001 - the launcher raises it
        return _raised(spec.rank, error)
    return _returned(spec.rank, obstacle)


def fork_obstacle() -> str | None:
    """Return the reason why this process must not be a fork of its parent, or None."""
    if not _REPORT:
        return _REPORT.reason
    threads = len([*Path(f"/proc/{os.getppid()}/task").iterdir()])
    return None if threads == 1 else f"{threads} threads are running after the imports"


def _run_task(task: RankTask, *, rank: int, world_size: int) -> RankOutcome:
    try:
        _leave_groups()
        gc.collect()  # models are reference cycles: otherwise two would be in memory at once
        _join_group(task.port, rank=rank, world_size=world_size)
        function = load(task.function)
        arguments = pickle.loads(task.arguments)
        return _returned(rank, function(*arguments))
    except BaseException as error:  # noqa: BLE001 - the launcher raises it; sys.exit is a failure too
        return _raised(rank, error)


def _returned(rank: int, result: object) -> RankOutcome:
    return RankOutcome(rank=rank, state="returned", summary="returned", result=pickle.dumps(result))


def _raised(rank: int, error: BaseException) -> RankOutcome:
    # lines of code of a syntax error precede type and message, and notes follow them
    summary = next(line for line in traceback.format_exception_only(error) if line[0] != " ").strip()
    detail = "".join(traceback.format_exception(error))
    return RankOutcome(rank=rank, state="raised", summary=f"raised {summary}", detail=detail)


def _join_group(port: int, *, rank: int, world_size: int) -> None:
    os.environ.update(MASTER_ADDR=ADDRESS, MASTER_PORT=str(port))
    store = dist.TCPStore(ADDRESS, port, world_size, is_master=rank == 0)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


def _leave_groups() -> None:
    """Clear process groups and Megatron's process-wide state of the previous run."""
    for module_name, path in _MEGATRON_STATE:
        if (module := sys.modules.get(module_name)) is not None:
            clear: Any = functools.reduce(getattr, path.split("."), module)
            clear()
    if dist.is_initialized():
        dist.destroy_process_group()
