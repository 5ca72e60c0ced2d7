"""Program of one rank: install, then run the launcher's tasks until it closes the connection."""

import atexit
import faulthandler
import functools
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import Connection, wait
from typing import Any

import torch.distributed as dist

from mb_host.installation import install
from mb_host.ranks.function_reference import load
from mb_host.ranks.messages import RankReply, RankTask

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
    *,
    rank: int,
    world_size: int,
    imports: Sequence[str],
    connection_fd: int,
    lifeline_fds: Sequence[int],
    dump_fd: int,
) -> None:
    """Serve the launcher at the other end of `connection_fd` until it sends None.

    A fatal signal (including the launcher's SIGABRT) writes the stacks of all threads to `dump_fd`. When the other end
    of one of `lifeline_fds`, or of the connection, is closed, the launcher or the rank server is dead, and this rank
    kills its process group.
    """
    faulthandler.enable(file=dump_fd, all_threads=True)
    threading.Thread(target=_die_with_launcher, args=(lifeline_fds,), daemon=True).start()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    connection: Connection[RankReply, RankTask | None] = Connection(connection_fd)
    try:
        connection.send(_prepare(imports))
        while (task := connection.recv()) is not None:
            connection.send(_run_task(task, rank=rank, world_size=world_size))
    except (EOFError, OSError):  # the launcher is dead, which may be seen here before the lifeline
        os.killpg(os.getpgrp(), signal.SIGKILL)
    _leave_groups()
    _exit()


def _die_with_launcher(lifeline_fds: Sequence[int]) -> None:
    wait(lifeline_fds)  # unlike select, supports descriptors above 1024
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _prepare(imports: Sequence[str]) -> RankReply:
    try:
        install()
        for name in imports:
            import_module(name)
    except BaseException as error:  # noqa: BLE001 - the launcher raises it
        return _raised(error)
    return RankReply(kind="ready")


def _run_task(task: RankTask, *, rank: int, world_size: int) -> RankReply:
    try:
        _leave_groups()
        gc.collect()  # models are reference cycles: otherwise two would be in memory at once
        _join_group(task, rank=rank, world_size=world_size)
        function = load(task.function)
        arguments = pickle.loads(task.arguments)
        return RankReply(kind="returned", payload=pickle.dumps(function(*arguments)))
    except BaseException as error:  # noqa: BLE001 - the launcher raises it; sys.exit is a failure too
        return _raised(error)


def _raised(error: BaseException) -> RankReply:
    summary = traceback.format_exception_only(error)[-1].strip()
    return RankReply(kind="raised", summary=summary, detail="".join(traceback.format_exception(error)))


def _join_group(task: RankTask, *, rank: int, world_size: int) -> None:
    os.environ.update(MASTER_ADDR=task.address, MASTER_PORT=str(task.port))
    store = dist.TCPStore(task.address, task.port, world_size, is_master=rank == 0)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


def _leave_groups() -> None:
    """Clear process groups and Megatron's process-wide state of the previous run."""
    for module_name, path in _MEGATRON_STATE:
        if (module := sys.modules.get(module_name)) is not None:
            clear: Any = functools.reduce(getattr, path.split("."), module)
            clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def _exit() -> None:
    """Exit as the interpreter does, but without freeing the heap, which takes a second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
