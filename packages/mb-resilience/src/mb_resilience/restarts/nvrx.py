"""In-process restarts of a training function by nvidia-resiliency-ext (NVRx). Imports NVRx and torch.

The life of a run: `run_with_restarts` connects to a store that outlives the ranks, and enters NVRx's wrapper, which
forks a monitoring process per rank. Each attempt calls the training function. A fault on any rank is recorded in the
store; a thread of every rank then aborts its collectives and raises in the main thread. The function unwinds, state is
reset (`finalize`), dead ranks are replaced by spare ones, and the next attempt begins.
"""

import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any, Generic, TypeVar

import nvidia_resiliency_ext.inprocess as inprocess
import torch
from nvidia_resiliency_ext.inprocess.monitor_thread import RankShouldRestart
from nvidia_resiliency_ext.inprocess.store import PrefixStore as AttemptStore
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from mb_resilience.config import InProcessRestartConfig
from mb_resilience.errors import AttemptError, RestartLimitError
from mb_resilience.restarts.arguments import (
    Rendezvous,
    RestartAttempt,
    check_restart,
    max_attempts,
    monitor_log_path,
    prepare_environment,
    ranks_per_node,
    wrapper_times,
)
from mb_resilience.restarts.native_sockets import open_sockets, shut_down_connections
from mb_resilience.restarts.nvrx_store import NVRX, POLL_SECONDS, SharedStore
from mb_resilience.restarts.rank_faults import RankFault, is_consequence, sorted_faults
from mb_resilience.restarts.signals import HeldSignals
from mb_resilience.restarts.store import ENDED, connect, serve_store

Returned = TypeVar("Returned")
logger = logging.getLogger(__name__)

MAX_FAULTS = 64
"""Number of faults of an attempt that are reported, the likely first causes."""
READER_SECONDS = 10.0
"""Wait for the rank that reads the faults, after which another one reads them."""
FINAL = "final"
"""Key of the error that ended the run, after which no rank starts another attempt."""


def run_with_restarts(
    train: Callable[[RestartAttempt], Returned],
    section: InProcessRestartConfig,
    *,
    abort: Sequence[Callable[[], object]] = (),
    finalize: Sequence[Callable[[], object]] = (),
    usable_world_size: Callable[[int], int] | None = None,
    is_final: Callable[[Exception], bool] = lambda error: False,
    exit_signals: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> Returned | None:
    """Call a training function, and restart it after each fault on the remaining ranks. Collective over all processes.

    The function initializes its process group with `attempt.store` and resumes from its latest checkpoint. RANK and
    WORLD_SIZE are those of the attempt. When a rank raises, dies or makes no progress for `soft_timeout`, collectives
    are aborted on all ranks and the function is called again. The launcher must keep the other processes alive when one
    dies: start the program with `keep_run_alive`, or with `srun --kill-on-bad-exit=0`.

    An error of an attempt is logged with its traceback, and released with all objects that its frames refer to, so that
    the next attempt has their memory.

    Args:
        train: runs one attempt.
        section: times, limits and the unit that is excluded after a fault.
        abort: called on every rank, in another thread, before collectives are aborted, to unblock the training
            function.
        finalize: called on every rank after its attempt has ended, to reset state such as Megatron's parallel state.
        usable_world_size: returns the number of active ranks to use of so many that remain, at most that number; 0 ends
            the run. None: all of them.
        is_final: returns whether a restart cannot help after an exception, such as one about invalid settings; it then
            ends the run on all ranks.
        exit_signals: signals that stop the training function, in addition to SIGTERM and SIGINT. Between attempts they
            are kept for the next one; a spare rank ignores them, because the active ranks receive them, too.
        environment: variables with rank, world size, ranks of the node and address of the rendezvous, as torchrun sets
            them; None: `os.environ`.

    Returns:
        Result of the successful attempt; None on a spare rank.

    Raises:
        SectionError: the section violates its rules.
        RestartSetupError: a process group is already initialized (V245), or the rendezvous, the rank, or the number of
            ranks of a node that is excluded as a whole is not set.
        RestartLimitError: the last permitted attempt ended with a fault, no rank remains that can train, this rank had
            more than `max_rank_faults` faults, or another rank raised a final error.
    """
    check_restart(section, group_initialized=torch.distributed.is_initialized())
    meeting = Rendezvous.from_environment(environment)
    node_ranks = ranks_per_node(section, meeting, environment)
    prepare_environment(section)
    server = serve_store(meeting) if meeting.owner == "rank 0" and meeting.rank == 0 else None
    if server is not None:
        meeting = replace(meeting, port=server.port)
    signals_held = {signal.SIGTERM, signal.SIGINT, *exit_signals}
    with HeldSignals(signals_held) as signals, rank_variables(meeting), nvrx_without_logs():
        run = RestartedRun(train, meeting, section=section, signals=signals, is_final=is_final)
        wrapper = _wrapper(
            section,
            run,
            node_ranks=node_ranks,
            abort=abort,
            finalize=finalize,
            usable_world_size=usable_world_size,
        )
        try:
            result: Returned | None = wrapper(run.attempt)(None)
        except (inprocess.exception.RestartAbort, inprocess.exception.RestartError) as error:
            raise run.final_error(error) from None
    # Read by the keepers of ranks that died: the run ended without a fault, so that they return 0.
    run.store.set(ENDED, "")
    del server  # the store must stay alive until the last attempt has ended
    return result


@contextmanager
def rank_variables(meeting: Rendezvous) -> Iterator[None]:
    """Set RANK and WORLD_SIZE for the block, which NVRx changes for each attempt; restore them after it."""
    previous = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    os.environ |= {"RANK": str(meeting.rank), "WORLD_SIZE": str(meeting.world_size)}
    try:
        yield
    finally:
        for name, value in previous.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def nvrx_without_logs() -> Iterator[None]:
    """Disable NVRx's log messages within the block, unless its logger is configured: errors are logged here."""
    log = logging.getLogger(inprocess.__name__)
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="logging not initialized")
        if level == logging.NOTSET and not log.handlers:
            log.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            log.setLevel(level)


def forget_incomplete_imports() -> None:
    """Remove modules whose package is not in `sys.modules`, because an interruption ended its import.

    A second import of the package would not set its attributes for modules that are already imported.
    """
    for name in sorted(sys.modules):
        parent = name.rpartition(".")[0]
        if parent and parent not in sys.modules:
            del sys.modules[name]


class RestartedRun(Generic[Returned]):
    """Training function that NVRx's wrapper calls, and the reasons why its attempts ended.

    Args:
        train: runs one attempt.
        meeting: address of the store, and initial rank of this process.
        section: limits.
        signals: signals that are held between attempts.
        is_final: returns whether an exception ends the run on all ranks.
    """

    def __init__(
        self,
        train: Callable[[RestartAttempt], Returned],
        meeting: Rendezvous,
        *,
        section: InProcessRestartConfig,
        signals: HeldSignals,
        is_final: Callable[[Exception], bool],
    ) -> None:
        self.store = connect(meeting)
        self.meeting = meeting
        self._train = train
        self._section = section
        self._signals = signals
        self._is_final = is_final
        self._error: Exception | None = None
        self._faults: dict[int, tuple[RankFault, ...]] = {}
        self._opened_before: dict[int, int] | None = None

    def attempt(self, call: inprocess.CallWrapper) -> Returned:
        """Call the training function. Raises NVRx's interruption, or an error without references to its frames."""
        self._opened_before = open_sockets()
        try:
            with self._signals.delivered():
                return self._train(
                    RestartAttempt(
                        number=call.iteration,
                        rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]),
                        # a connection of its own: an abort shuts it down, and NVRx's connections remain
                        store=PrefixStore(f"attempt/{call.iteration}", connect(self.meeting)),
                        faults=self.faults(call.iteration - 1),
                    )
                )
        except BaseException as error:  # noqa: BLE001 (raised below)
            failure = self._without_frames(error, call.iteration)
        finally:
            self._opened_before = None
        raise failure  # outside of the handler, so that the original is not its context

    def _without_frames(self, error: BaseException, number: int) -> BaseException:
        interruption = interruption_in(error)
        if interruption is not None:
            interruption.__context__ = None
            return interruption.with_traceback(None)
        if not isinstance(error, Exception):
            return error
        text = "".join(traceback.format_exception_only(error)).strip()
        if self._is_final(error):
            self._error = error
            self.store.set(FINAL, f"rank {self.meeting.rank} raised {text}")
            abort: BaseException = inprocess.exception.RestartAbort(text)
            return abort
        details = text if is_consequence(text) else traceback.format_exc()
        logger.warning("rank %d, attempt %d: %s", self.meeting.rank, number, details)
        self.store.set(f"error/{number}/{self.meeting.rank}", text)
        return AttemptError(text)

    def faults(self, number: int) -> tuple[RankFault, ...]:
        """Return why an attempt was interrupted, the likely first cause first; empty for a negative number.

        One rank reads the records of all ranks, and the others its result: all ranks may have one, and reading them on
        all ranks would load the store with the square of their number.
        """
        if number < 0:
            return ()
        if number not in self._faults:
            self._faults[number] = self._shared_faults(f"faults/{number}", number)
        return self._faults[number]

    def _shared_faults(self, key: str, number: int) -> tuple[RankFault, ...]:
        is_reader, deadline = self.store.add(f"{key}/readers", 1) == 1, time.monotonic() + READER_SECONDS
        while not is_reader and time.monotonic() < deadline:
            if self.store.check([key]):
                return tuple(RankFault(**fault) for fault in json.loads(self.store.get(key)))
            time.sleep(POLL_SECONDS)
        faults = self._read_faults(number)[:MAX_FAULTS]
        self.store.set(key, json.dumps([asdict(fault) for fault in faults]))
        return faults

    def _read_faults(self, number: int) -> tuple[RankFault, ...]:
        store = AttemptStore(number, PrefixStore(NVRX, self.store))
        dead = store.get_terminated_ranks()
        kinds = [(record.rank, record.interruption.name) for record in store.get_interruption_records()]
        kinds = [
            (rank, "HARD_TIMEOUT" if rank in dead and kind == "SOFT_TIMEOUT" else kind)
            for rank, kind in kinds
        ]
        # a rank that dies may have no record of its own, unlike the ranks whose collectives then raise
        recorded = {rank for rank, _ in kinds}
        kinds += [(rank, "TERMINATED") for rank in dead if rank not in recorded]
        return sorted_faults([self._fault(store, number, rank, kind) for rank, kind in kinds])

    def _fault(self, store: Any, number: int, rank: int, kind: str) -> RankFault:
        key = SharedStore.INITIAL_RANK.format(rank=rank)
        initial = int(store.get(key)) if store.check([key]) else rank
        error = f"error/{number}/{initial}"
        has_error = kind == "EXCEPTION" and self.store.check([error])
        return RankFault(rank=initial, kind=kind, error=self.store.get(error).decode() if has_error else None)

    def permit(self, number: int, *, ranks: int, active_ranks: int) -> None:
        """Raise NVRx's RestartAbort if no further attempt is permitted, or possible."""
        if self.store.check([FINAL]):
            raise inprocess.exception.RestartAbort(
                f"inprocess_restart: the run ends, because {self.store.get(FINAL).decode()}"
            )
        limit = max_attempts(self._section)
        reasons = "; ".join(map(str, self.faults(number - 1)))
        if limit is not None and number >= limit:
            raise inprocess.exception.RestartAbort(
                f"inprocess_restart.max_iterations: after {number - 1} restarts ({reasons}) no other is permitted "
                f"(max_iterations={limit - 1}). Fix the fault, or increase the limit; a new start resumes the run."
            )
        if active_ranks < 1:
            raise inprocess.exception.RestartAbort(
                f"inprocess_restart: {ranks} remaining ranks cannot train this run ({reasons}). Start it again with "
                "more processes than inprocess_restart.active_world_size, which replace ranks that die."
            )

    def abort_connections(self) -> None:
        """Make collectives of gloo, and waits in the attempt's store, raise in the main thread."""
        if self._opened_before is not None:
            shut_down_connections(opened_before=self._opened_before)

    def final_error(self, error: BaseException) -> Exception:
        """Return the exception of `run_with_restarts` for an exception of NVRx's wrapper."""
        if self._error is not None:
            return self._error
        if isinstance(error, inprocess.exception.RestartAbort):
            return RestartLimitError(str(error))
        if isinstance(error, inprocess.exception.HealthCheckError):
            return RestartLimitError(
                f"inprocess_restart.max_rank_faults: rank {self.meeting.rank} leaves the run ({error.__cause__!r}). "
                "The other ranks continue if enough remain."
            )
        if isinstance(error, inprocess.rank_assignment.RankDiscarded):
            return RestartLimitError(
                f"inprocess_restart.granularity: rank {self.meeting.rank} leaves the run, because another rank of its "
                f"node died (granularity={self._section.granularity})."
            )
        return RestartLimitError(f"inprocess_restart: rank {self.meeting.rank} leaves the run: {error!r}")


def interruption_in(error: BaseException) -> BaseException | None:
    """Return NVRx's interruption if it is an error, or was replaced by the error while the function unwound."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, RankShouldRestart):
            break
        seen = seen.__cause__ or seen.__context__
    return seen


def _wrapper(
    section: InProcessRestartConfig,
    run: RestartedRun[Any],
    *,
    node_ranks: int | None,
    abort: Sequence[Callable[[], object]],
    finalize: Sequence[Callable[[], object]],
    usable_world_size: Callable[[int], int] | None,
) -> Any:
    meeting = run.meeting
    active = meeting.world_size if section.active_world_size is None else section.active_world_size
    forget = [
        _destroy_groups,
        forget_incomplete_imports,
        *finalize,
        *([_empty_cache] if section.empty_cuda_cache else []),
    ]
    return inprocess.Wrapper(
        store_factory=SharedStore,
        store_kwargs={"meeting": meeting},
        initialize=_Initialize(run),
        abort=_Abort(*abort, then=[run.abort_connections, _destroy_userbuffers]),
        finalize=_Finalize(*forget),
        health_check=inprocess.Compose(
            inprocess.health_check.CudaHealthCheck(),
            inprocess.health_check.FaultCounter(section.max_rank_faults),
        ),
        rank_assignment=inprocess.rank_assignment.Tree(
            _layers(active, node_ranks=node_ranks), world_size_filter=usable_world_size
        ),
        monitor_process_logfile=monitor_log_path(section),
        **wrapper_times(section),
    )


def _layers(active: int, *, node_ranks: int | None) -> list[Any]:
    """Return the layers of the rank assignment, which define the excluded unit: ranks, or complete nodes."""
    ranks = inprocess.rank_assignment
    layers = [ranks.Layer(min_ranks=1, max_ranks=active, flag=ranks.LayerFlag.RESERVE)]
    if node_ranks is not None:
        layers.append(
            ranks.Layer(
                min_ranks=node_ranks,
                max_ranks=node_ranks,
                key_or_fn=lambda state: socket.gethostname(),
                flag=ranks.LayerFlag.RESERVE,
            )
        )
    return layers


def _uses_nccl() -> bool:
    """Return whether a process group of this rank uses NCCL."""
    if not torch.distributed.is_initialized():
        return False
    groups = torch.distributed.distributed_c10d._world.pg_map.values()
    return any("nccl" in backend for backend, _ in list(groups))


def _destroy_groups() -> None:
    """Destroy the process groups that the training function has left."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _destroy_userbuffers() -> None:
    """Release Transformer Engine's user buffers if it is imported. NVRx has a class for this only since 0.4."""
    engine: Any = sys.modules.get("transformer_engine.pytorch")
    if engine is not None:
        engine.module.base.destroy_ub()


def _empty_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class _Initialize(inprocess.initialize.Initialize):  # type: ignore[misc]  # NVRx has no types
    def __init__(self, run: RestartedRun[Any]) -> None:
        self._run = run

    def __call__(self, state: Any) -> Any:
        self._run.permit(state.iteration, ranks=state.world_size, active_ranks=state.active_world_size)
        return state


class _Abort(inprocess.abort.Abort):  # type: ignore[misc]  # NVRx has no types
    """Abort collectives: functions of the caller, then NCCL, then connections and buffers.

    NVRx's class aborts NCCL and destroys all groups. For gloo it would only destroy the groups, while the main thread
    may use them, so that this is left to the main thread.
    """

    def __init__(self, *first: Callable[[], object], then: Sequence[Callable[[], object]]) -> None:
        self._first = first
        self._nccl = inprocess.abort.AbortTorchDistributed()
        self._then = then

    def __call__(self, state: Any) -> Any:
        with ExitStack() as stack:  # in reverse order: calls all of them, even if one raises
            for function in reversed(self._then):
                stack.callback(function)
            if _uses_nccl():
                stack.callback(self._nccl, state)
            for function in reversed(self._first):
                stack.callback(function)
        return state


class _Finalize(inprocess.finalize.Finalize):  # type: ignore[misc]  # NVRx has no types
    def __init__(self, *functions: Callable[[], object]) -> None:
        self._functions = functions

    def __call__(self, state: Any) -> Any:
        for function in self._functions:
            function()
        return state
