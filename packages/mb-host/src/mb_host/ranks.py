"""Run a function on N gloo ranks, each a process of this machine, and bring back what each returned."""

import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from mb_host.function_reference import FunctionReference, reference_to
from mb_host.outcomes import RankFailedError
from mb_host.rank_messages import RankSpec, RankTask
from mb_host.rank_process import RankProcess
from mb_host.rank_results import gather_outcomes
from mb_host.start_methods import StartMethod, rank_starter

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
    """Run `fn(*args)` on `world_size` new ranks and return their results, by rank: a `RankPool` used once.

    See `RankPool` for what a rank is, and for the errors.
    """
    with RankPool(world_size, timeout_seconds=timeout_seconds, env=env) as pool:
        return pool.run(fn, *args)


class RankPool:
    """`world_size` processes that stay alive between runs, so that imports are paid for once.

    In each rank `mb_host.install()` has run, RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, and
    the default process group is a gloo group, new for each run. What a run leaves of process groups and of Megatron's
    process-wide state is cleared before the next one; random generators and other modules' state are not. Where a
    rank died or had to be ended, the next run gets new processes; where each raised or returned, the same ones.

    Args:
        world_size: Number of ranks.
        timeout_seconds: How long a run may take on the slowest rank, without the start of the processes.
        env: Environment variables to add to this process's; OMP_NUM_THREADS is 1 unless it is given here.
        imports: Modules that the ranks need, to be imported before the first run.
        start_method: "fork" (Linux): ranks are forked from one process of one thread, which all pools of this process
            with the same `env` share and which imports torch and `imports` once; it stays until this process ends,
            so that later pools need not wait for imports. Ranks then share memory for them, and
            the seed of Python's hashes. What else this process's environment says about imports is taken from its
            first pool. "spawn": each rank is a fresh interpreter; also where forking is not safe (not Linux, a GPU is
            there, an import starts a thread).
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
                f"RankPool.world_size: got {world_size}, because a run needs a rank; give 1 or more."
            )
        self.world_size = world_size
        self.timeout_seconds = timeout_seconds
        self._added = dict(env or {})
        self._env = _environment(self._added)
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
        """Run `fn(*args)` on every rank and return the results, by rank.

        `fn` is a function at the top of a module, or named by `function_in`; arguments and results are pickled.
        Printing goes where this process prints.

        Raises:
            TypeError: `fn` cannot be found again in another process.
            RankFailedError: A rank raised or died; the others were given two seconds and then ended.
            RankTimeoutError: A rank was still running after `timeout_seconds` (the pool's unless given); all ended.
        """
        reference = fn if isinstance(fn, FunctionReference) else reference_to(fn)
        arguments = pickle.dumps(args)
        timeout = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            self._start()
            self._await_ready()
            with _reserved_port() as port:
                work = RankTask(function=reference, arguments=arguments, address=_ADDRESS, port=port)
                for process in self._processes:
                    process.send(work)
                outcomes = gather_outcomes(self._processes, what=str(reference), timeout_seconds=timeout)
        except RankFailedError as error:
            if not error.all_replied:
                self._stop(grace_seconds=0.0)
            raise
        except BaseException:
            self._stop(grace_seconds=0.0)
            raise
        return [pickle.loads(outcome.result) for outcome in sorted(outcomes, key=lambda each: each.rank)]

    def _start(self) -> None:
        if not self._processes:
            self._ready = False
            start = rank_starter(self._start_method, added=self._added, env=self._env)
            try:
                for rank in range(self.world_size):
                    self._processes.append(RankProcess(self._orders(rank), start=start))
            except BaseException:
                self._stop(grace_seconds=0.0)
                raise

    def _orders(self, rank: int) -> RankSpec:
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
    # Under torchrun, TORCHELASTIC_USE_AGENT_STORE would send the ranks to the store of another job.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    return {**inherited, "OMP_NUM_THREADS": "1", **added}


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Hold a free port: bound but not listening, it is given to nobody else, and the store of rank 0 can listen."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_ADDRESS, 0))
        yield holder.getsockname()[1]
