"""Run functions on N gloo ranks, each a process on this machine, and return their results."""

import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from mb_host.ranks.errors import RankFailedError
from mb_host.ranks.function_reference import FunctionReference, reference_to
from mb_host.ranks.messages import ADDRESS, RankOutcome, RankSpec, RankTask
from mb_host.ranks.process import RankProcess, gather_outcomes

Result = TypeVar("Result")
StartMethod = Literal["fork", "spawn"]
_START_SECONDS = 120.0
_LEAVE_SECONDS = 5.0

# Variables that the pool which started the fork server of this process added to the environment. multiprocessing has
# one server per process, which imports once, and imports read variables.
_server_env: dict[str, str] | None = None


def run_ranks(
    fn: Callable[..., Result] | FunctionReference,
    world_size: int,
    *args: object,
    timeout_seconds: float = 120.0,
    env: Mapping[str, str] | None = None,
) -> list[Result]:
    """Run `fn(*args)` on `world_size` new ranks and return their results by rank.

    Equivalent to a `RankPool` that is used once; see there for details and errors.
    """
    with RankPool(world_size, timeout_seconds=timeout_seconds, env=env) as pool:
        return pool.run(fn, *args)


class RankPool:
    """Pool of `world_size` processes that remain alive between runs, so that modules are imported once.

    In each rank `mb_host.install()` has run, RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, and the
    default process group is a gloo group, new for each run. Process groups and Megatron's process-wide state are
    cleared before the next run; random generators and the state of other modules are not. If a rank died or was
    aborted, the next run uses new processes; if all ranks raised or returned, the same ones.

    Args:
        world_size: Number of ranks.
        timeout_seconds: Timeout of a run on the slowest rank, without the start of the processes.
        env: Environment variables to add to those of this process; OMP_NUM_THREADS is 1 unless it is set here.
        imports: Modules that are imported before the first run.
        start_method: "fork" (Linux): ranks are forked from multiprocessing's fork server, which imports torch and the
            `imports` of the first pool once, and remains until this process ends. Ranks share the memory of these
            imports and the seed of Python's hashes. "spawn": each rank is a new interpreter. Spawn is also used if
            forking is not safe (not Linux, with a GPU, or if an import starts a thread), and if `env` differs from
            that of the first pool, because imports may read it.
    """

    def __init__(
        self,
        world_size: int,
        *,
        timeout_seconds: float = 120.0,
        env: Mapping[str, str] | None = None,
        imports: Sequence[str] = (),
        start_method: StartMethod = "fork",
    ) -> None:
        if world_size < 1:
            raise ValueError(
                f"RankPool.world_size: got {world_size}, but a run needs at least one rank. Pass 1 or more."
            )
        self.world_size = world_size
        self.timeout_seconds = timeout_seconds
        self._added_env = dict(env or {})
        self._env = _environment(self._added_env)
        self._imports = tuple(imports)
        self._start_method: StartMethod = start_method
        self._processes: list[RankProcess] = []
        self._ready = False

    def __enter__(self) -> "RankPool":
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(grace_seconds=_LEAVE_SECONDS if error is None else 0.0)

    def run(
        self,
        fn: Callable[..., Result] | FunctionReference,
        *args: object,
        timeout_seconds: float | None = None,
    ) -> list[Result]:
        """Run `fn(*args)` on every rank and return the results by rank.

        `fn` is a module-level function, or a reference from `function_in`; arguments and results are pickled. Ranks
        share stdout and stderr of this process.

        Raises:
            TypeError: `fn` cannot be imported in another process.
            RankFailedError: A rank raised or died; the others are aborted after two seconds.
            RankTimeoutError: A rank was still running after `timeout_seconds` (default: that of the pool); all ranks
                are aborted.
        """
        reference = fn if isinstance(fn, FunctionReference) else reference_to(fn)
        arguments = pickle.dumps(args)
        timeout = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            self._start()
            self._await_ready()
            with _reserved_port() as port:
                for process in self._processes:
                    process.send(RankTask(function=reference, arguments=arguments, port=port))
                outcomes = self._gather(str(reference), timeout)
        except RankFailedError as error:
            if not error.all_replied:
                self._stop(grace_seconds=0.0)
            raise
        except BaseException:
            self._stop(grace_seconds=0.0)
            raise
        return _results(outcomes)

    def _start(self) -> None:
        if self._processes:
            return
        self._ready = False
        method = self._available_method()
        try:
            self._start_ranks(method)
        except (EOFError, ConnectionError):  # the fork server has ended, as after an import that raises
            self._start_ranks("spawn")

    def _start_ranks(self, method: Literal["forkserver", "spawn"]) -> None:
        # At exit before multiprocessing waits for its processes, and not in a fork of this process.
        self._at_exit = Finalize(None, self._stop, kwargs={"grace_seconds": 0.0}, exitpriority=0)
        try:
            for rank in range(self.world_size):
                self._processes.append(RankProcess(self._spec(rank, method)))
        except BaseException:
            self._stop(grace_seconds=0.0)
            raise

    def _available_method(self) -> Literal["forkserver", "spawn"]:
        global _server_env
        if self._start_method == "spawn" or sys.platform != "linux":
            return "spawn"
        if _server_env is None:
            get_context("forkserver").set_forkserver_preload(["mb_host.ranks.rank", *self._imports])
            _server_env = self._added_env
        return "forkserver" if self._added_env == _server_env else "spawn"

    def _spec(self, rank: int, method: Literal["forkserver", "spawn"]) -> RankSpec:
        return RankSpec(
            rank=rank,
            world_size=self.world_size,
            imports=self._imports,
            environment=self._env,
            folder=str(Path.cwd()),
            start_method=method,
        )

    def _await_ready(self) -> None:
        if self._ready:
            return
        # Each rank answers why it cannot be forked, if so.
        if any(_results(self._gather("the start of a rank", _START_SECONDS))):
            self._stop(grace_seconds=0.0)
            self._start_method = "spawn"
            self._start_ranks("spawn")
            self._gather("the start of a rank", _START_SECONDS)
        self._ready = True

    def _gather(self, what: str, timeout_seconds: float) -> list[RankOutcome]:
        return gather_outcomes(self._processes, what=what, timeout_seconds=timeout_seconds)

    def _stop(self, *, grace_seconds: float) -> None:
        self._at_exit.cancel()
        for process in self._processes:
            process.close_connection()
        for process in self._processes:
            process.end(grace_seconds=grace_seconds)
        self._processes.clear()


def _results(outcomes: Sequence[RankOutcome]) -> list[Any]:
    return [pickle.loads(outcome.result) for outcome in outcomes]


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank: that of this process, with the added variables."""
    # Under torchrun, TORCHELASTIC_USE_AGENT_STORE would connect the ranks to the store of another job.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    return {**inherited, "OMP_NUM_THREADS": "1", **added}


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Reserve a free port. Bound but not listening, it is not assigned again, and the store of rank 0 can listen."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((ADDRESS, 0))
        yield holder.getsockname()[1]
