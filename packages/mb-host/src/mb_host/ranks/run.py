"""Run functions on N gloo ranks, each a process on this machine, and return their results."""

import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from mb_host.ranks.function_reference import FunctionReference, reference_to
from mb_host.ranks.messages import RankSpec, RankTask
from mb_host.ranks.outcomes import RankFailedError
from mb_host.ranks.process import RankProcess
from mb_host.ranks.results import gather_outcomes
from mb_host.ranks.start_methods import StartMethod, rank_starter

Result = TypeVar("Result")
_ADDRESS = "127.0.0.1"
_START_SECONDS = 120.0
_LEAVE_SECONDS = 5.0


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
        start_method: "fork" (Linux): ranks are forked from a single-threaded rank server, which imports torch and
            `imports` once. All pools of this process with the same `env` share it, and it remains until this process
            ends. Ranks share the memory of the imports and the seed of Python's hashes. Other environment variables
            during the imports are those of the first pool. "spawn": each rank is a new interpreter. Spawn is also used
            if forking is not safe (not Linux, with a GPU, or if an import starts a thread).
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
                task = RankTask(function=reference, arguments=arguments, address=_ADDRESS, port=port)
                for process in self._processes:
                    process.send(task)
                outcomes = gather_outcomes(self._processes, what=str(reference), timeout_seconds=timeout)
        except RankFailedError as error:
            if not error.all_replied:
                self._stop(grace_seconds=0.0)
            raise
        except BaseException:
            self._stop(grace_seconds=0.0)
            raise
        return [
            pickle.loads(outcome.result) for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)
        ]

    def _start(self) -> None:
        if not self._processes:
            self._ready = False
            start = rank_starter(self._start_method, added_env=self._added_env, env=self._env)
            try:
                for rank in range(self.world_size):
                    self._processes.append(RankProcess(self._spec(rank), start=start))
            except BaseException:
                self._stop(grace_seconds=0.0)
                raise

    def _spec(self, rank: int) -> RankSpec:
        return RankSpec(
            rank=rank,
            world_size=self.world_size,
            imports=self._imports,
            environment=self._env,
            path=tuple(sys.path),
            folder=str(Path.cwd()),
        )

    def _await_ready(self) -> None:
        if not self._ready:
            gather_outcomes(self._processes, what="the start of a rank", timeout_seconds=_START_SECONDS)
            self._ready = True

    def _stop(self, *, grace_seconds: float) -> None:
        for process in self._processes:
            process.close_connection()
        for process in self._processes:
            process.end(grace_seconds=grace_seconds)
        self._processes.clear()


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
        holder.bind((_ADDRESS, 0))
        yield holder.getsockname()[1]
