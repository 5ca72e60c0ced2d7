"""In-process restarts of a training function by nvidia-resiliency-ext (NVRx). Imports NVRx and torch."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import nvidia_resiliency_ext.inprocess as inprocess
import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from mb_resilience.config import InProcessRestartConfig
from mb_resilience.restart import (
    ABORT_ENVIRONMENT,
    Rendezvous,
    RestartAttempt,
    check_restart,
    max_attempts,
    monitor_log_path,
    wrapper_times,
)

Returned = TypeVar("Returned")


def run_with_restarts(
    train: Callable[[RestartAttempt], Returned],
    section: InProcessRestartConfig,
    *,
    abort: Sequence[Callable[[], object]] = (),
    finalize: Sequence[Callable[[], object]] = (),
) -> Returned | None:
    """Call a training function, and restart it after each fault on the remaining ranks. Collective over all processes.

    The function initializes its process group with `attempt.store` and resumes from its latest checkpoint. RANK and
    WORLD_SIZE are those of the attempt. When a rank raises, dies or makes no progress for `soft_timeout`, collectives
    are aborted on all ranks and the function is called again. The process of rank 0 must survive, because it serves the
    stores. The launcher must keep the other processes alive when one dies (`srun --kill-on-bad-exit=0`).

    Args:
        train: runs one attempt.
        section: times, limits and the unit that is excluded after a fault.
        abort: called on every rank, in another thread, after collectives are aborted, to unblock the training function.
        finalize: called on every rank after its attempt has ended, to reset state such as Megatron's parallel state.

    Returns:
        Result of the successful attempt; None on a spare rank.

    Raises:
        SectionError: the section violates its rules.
        RestartSetupError: a process group is already initialized (V245), or the rendezvous or the rank is not set.
    """
    check_restart(section, group_initialized=torch.distributed.is_initialized())
    meeting = Rendezvous.from_environment()
    for name, value in ABORT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    server = _connect(meeting, serve=True) if meeting.rank == 0 else None

    def attempt(call: inprocess.CallWrapper) -> Returned:
        mine = RestartAttempt(
            number=call.iteration,
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            store=PrefixStore(f"attempt/{call.iteration}", _connect(meeting)),
        )
        return train(mine)

    wrapper = _wrapper(section, meeting, abort=abort, finalize=finalize)
    try:
        result: Returned | None = wrapper(attempt)(None)
        return result
    finally:
        del server  # the store must stay alive until the last attempt has ended


def _connect(meeting: Rendezvous, *, serve: bool = False) -> TCPStore:
    return TCPStore(
        meeting.host,
        meeting.store_port,
        is_master=serve,
        wait_for_workers=False,
        timeout=timedelta(minutes=5),
    )


def _wrapper(
    section: InProcessRestartConfig,
    meeting: Rendezvous,
    *,
    abort: Sequence[Callable[[], object]],
    finalize: Sequence[Callable[[], object]],
) -> Any:
    active = meeting.world_size if section.active_world_size is None else section.active_world_size
    forget = [*finalize, *([_empty_cache] if section.empty_cuda_cache else [])]
    return inprocess.Wrapper(
        store_kwargs={"port": meeting.wrapper_port, "timeout": timedelta(minutes=5)},
        initialize=inprocess.initialize.RetryController(max_iterations=max_attempts(section)),
        abort=inprocess.Compose(
            _Abort(_destroy_userbuffers),
            inprocess.abort.AbortTorchDistributed(),
            *(_Abort(each) for each in abort),
        ),
        finalize=inprocess.Compose(*(_Finalize(each) for each in forget)) if forget else None,
        health_check=inprocess.Compose(
            inprocess.health_check.CudaHealthCheck(),
            inprocess.health_check.FaultCounter(section.max_rank_faults),
        ),
        rank_assignment=inprocess.rank_assignment.Tree(_layers(section, active)),
        monitor_process_logfile=monitor_log_path(section),
        **wrapper_times(section),
    )


def _layers(section: InProcessRestartConfig, active: int) -> list[Any]:
    """Return the layers of the rank assignment, which define the excluded unit: ranks, or complete nodes."""
    ranks = inprocess.rank_assignment
    layers = [ranks.Layer(min_ranks=1, max_ranks=active, flag=ranks.LayerFlag.RESERVE)]
    if section.granularity == "node":
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        layers.append(
            ranks.Layer(
                min_ranks=local,
                max_ranks=local,
                key_or_fn=lambda state: socket.gethostname(),
                flag=ranks.LayerFlag.RESERVE,
            )
        )
    return layers


def _destroy_userbuffers() -> None:
    """Release Transformer Engine's user buffers if it is imported. NVRx has a class for this only since 0.4."""
    engine: Any = sys.modules.get("transformer_engine.pytorch")
    if engine is not None:
        engine.module.base.destroy_ub()


def _empty_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class _Abort(inprocess.abort.Abort):  # type: ignore[misc]  # NVRx has no types
    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def __call__(self, state: Any) -> Any:
        self._function()
        return state


class _Finalize(inprocess.finalize.Finalize):  # type: ignore[misc]  # NVRx has no types
    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def __call__(self, state: Any) -> Any:
        self._function()
        return state
