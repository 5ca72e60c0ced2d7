"""Time of the main thread with many simulated ranks, measured against one TCPStore. By hand, not in CI:

    RES_OPTIONS="timeout:1 attempts:1" python tests/scale/main_thread.py 1024 4096

torch's store looks up the host name of each connection, one after the other; RES_OPTIONS shortens the waits of a host
without a name server. About a minute for 4,096 ranks.

The ranks are the real classes, each with a connection of its own. They are spread over two processes of 16 threads, so
that 32 requests meet in the one thread of the store. In a run those of all ranks do: the slowest rank of a step then
waits for the processor time of the store, and the others for a part of it.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from types import SimpleNamespace
from typing import NamedTuple

from laws import saved_by
from torch.distributed import TCPStore

from mb_checkpoint.formats.manifest import decode_manifest, encode_manifest, files_of_rank
from mb_checkpoint.save.commit_barrier import CommitBarrier, next_round
from mb_resilience import HangReporter, StopRequests

PROCESSES, THREADS = 2, 16
STEPS = 100
"""Steps during which a save is in flight."""
IDLE = SimpleNamespace(received=None)
"""Watcher without a request."""


class Measured(NamedTuple):
    """Seconds of one step, save or report."""

    server: float
    """Processor time of the store."""
    wall: float
    """From the first request to the last answer of all ranks."""
    median_rank: float
    slowest_rank: float
    """Time that a rank spent in the call."""


def serve(pipe: Connection) -> None:
    """Serve the store, and report its processor time at each message."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    pipe.send(store.port)
    while pipe.recv():
        used = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send(used.ru_utime + used.ru_stime)


def simulate(pipe: Connection, port: int, ranks: Sequence[int], world_size: int) -> None:
    """Run calls for some ranks: each message names a function of `Ranks`, whose times by rank are sent back."""
    simulated = Ranks(port, ranks, world_size)
    pipe.send(None)
    with ThreadPoolExecutor(THREADS) as pool:
        for name in iter(pipe.recv, None):
            call = getattr(simulated, name)
            parts = [range(first, len(ranks), THREADS) for first in range(THREADS)]

            def run(part: range, call: Callable[[int], object] = call) -> list[float]:
                times = []
                for number in part:
                    began = time.perf_counter()
                    call(number)
                    times.append(time.perf_counter() - began)
                return times

            pipe.send([each for times in pool.map(run, parts) for each in times])


def connected(port: int) -> TCPStore:
    """Return a connection to the store."""
    return TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=300))


def _same(store: TCPStore) -> TCPStore:
    return store


class Ranks:
    """Ranks of one process, by their number in it."""

    def __init__(self, port: int, ranks: Sequence[int], world_size: int) -> None:
        self._ranks, self._world_size = ranks, world_size
        with ThreadPoolExecutor(
            THREADS
        ) as pool:  # some connections take 5 s where the host has no name server
            self._stores = list(pool.map(lambda _: connected(port), ranks))
        self._barriers = [
            CommitBarrier(store, rank=rank, world_size=world_size, name=".saving_iter_0001000.0a1b2c3d")
            for rank, store in zip(ranks, self._stores, strict=True)
        ]
        self._reporters = [
            HangReporter(seconds=100, store=store, rank=rank, world_size=world_size, log=lambda text: None)
            for rank, store in zip(ranks, self._stores, strict=True)
        ]
        self._stops = [
            StopRequests(IDLE, store=store, rank=rank, world_size=world_size, connect=partial(_same, store))
            for rank, store in zip(ranks, self._stores, strict=True)
        ]
        for stop in self._stops:
            stop._agreed._exchange._thread = self  # "started": its work is a call of its own below
        self._steps = [0] * len(ranks)
        self._old_keys = [f"old/rank{rank}" for rank in range(world_size)]

    def save_in_flight(self, number: int) -> None:
        """Poll a save after a step."""
        if self._ranks[number] == 0:
            self._barriers[number].failures()
        self._barriers[number].decide(None)

    def end_of_save(self, number: int) -> None:
        """Report that this rank has written."""
        self._barriers[number].report("")

    def failures(self, number: int) -> None:
        """Read the reports on rank 0."""
        if self._ranks[number] == 0:
            assert self._barriers[number].failures() == []

    def agreed_stop(self, number: int) -> None:
        """Ask after a step whether to stop."""
        self._steps[number] += 1
        self._stops[number].stop_requested(self._steps[number])

    def evaluation(self, number: int) -> None:
        """Ask before a batch of an evaluation whether to stop."""
        self._stops[number].stop_evaluation()

    def publish(self, number: int) -> None:
        """Publish the decision of rank 0, which its thread does."""
        if self._ranks[number] == 0:
            self._stops[number]._agreed._exchange._publish_newest()

    def follow(self, number: int) -> None:
        """Read the decision on the other ranks, which their threads do."""
        if self._ranks[number]:
            self._stops[number]._agreed._exchange._read_wanted()

    def heartbeat(self, number: int) -> None:
        """Send a heartbeat, which the thread of the reporter does."""
        self._reporters[number]._beat()

    def statuses(self, number: int) -> None:
        """Read the statuses of all ranks on rank 0, as the report of a hang does twice."""
        if self._ranks[number] == 0:
            assert len(self._reporters[number]._statuses.read()) == self._world_size

    def set_old_keys(self, number: int) -> None:
        """Report as before: each rank had a key."""
        self._stores[number].set(self._old_keys[self._ranks[number]], "")
        if self._ranks[number] == 0:
            self._stores[number].set("old/decided", "x")

    def save_in_flight_before(self, number: int) -> None:
        """Poll as before: each rank looked for the decision and read it, rank 0 looked for the keys of all ranks."""
        if self._ranks[number] == 0:
            self._stores[number].check(self._old_keys)
        self._stores[number].check(["old/decided"])
        self._stores[number].get("old/decided")

    def evaluation_before(self, number: int) -> None:
        """Read the decision before a batch, as before."""
        self._stores[number].get("old/decided")


class Simulation:
    """A store and its ranks, in processes of their own."""

    def __init__(self, world_size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._server, theirs = context.Pipe()
        self._processes = [context.Process(target=serve, args=(theirs,), daemon=True)]
        self._processes[0].start()
        port = self._server.recv()
        self._pipes = []
        for first in range(PROCESSES):
            own, theirs = context.Pipe()
            ranks = range(first, world_size, PROCESSES)
            process = context.Process(target=simulate, args=(theirs, port, ranks, world_size), daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(own)
        for pipe in self._pipes:
            pipe.recv()

    def call(self, name: str) -> Measured:
        """Make a call on all ranks."""
        used, began = self._used(), time.perf_counter()
        for pipe in self._pipes:
            pipe.send(name)
        times = [each for pipe in self._pipes for each in pipe.recv()]
        wall = time.perf_counter() - began
        return Measured(self._used() - used, wall, median(times), max(times))

    def _used(self) -> float:
        self._server.send(True)
        used: float = self._server.recv()
        return used

    def close(self) -> None:
        """End all processes."""
        for pipe in self._pipes:
            pipe.send(None)
        self._server.send(False)
        for process in self._processes:
            process.join()


def measure(world_size: int) -> dict[str, Measured]:
    """Return what one step, save or report costs with so many ranks."""
    simulation, found = Simulation(world_size), {}
    try:
        for _ in range(3):
            found["agreed stop, a step"] = simulation.call("agreed_stop")
            simulation.call("publish")
            found["agreed stop (in threads)"] = simulation.call("follow")
        for _ in range(3):
            found["agreed stop, a batch of an evaluation"] = simulation.call("evaluation")
            simulation.call("publish")
            simulation.call("follow")
        polls = [simulation.call("save_in_flight") for _ in range(STEPS)]
        rounds, number = [], 1
        while number <= STEPS:
            rounds.append(number)
            number = next_round(number)
        found["save in flight, mean of 100 steps"] = Measured(
            *(sum(values) / STEPS for values in zip(*polls, strict=True))
        )
        at_round = [polls[number - 1] for number in rounds[1:]]
        found["save in flight, a step that reads"] = Measured(
            *(median(values) for values in zip(*at_round, strict=True))
        )
        found["end of a save, all reports"] = simulation.call("end_of_save")
        found["end of a save, rank 0 reads"] = simulation.call("failures")
        found["heartbeats (in threads)"] = simulation.call("heartbeat")
        found["hang report, one reading (in a thread)"] = simulation.call("statuses")
        simulation.call("set_old_keys")
        before = [simulation.call("save_in_flight_before") for _ in range(5)]
        found["before: save in flight, each step"] = Measured(*map(median, zip(*before, strict=True)))
        before = [simulation.call("evaluation_before") for _ in range(5)]
        found["before: a batch of an evaluation"] = Measured(*map(median, zip(*before, strict=True)))
    finally:
        simulation.close()
    return found


def of_load(world_size: int) -> dict[str, float]:
    """Return the processor time of what a load does for all files in one process."""
    manifest = saved_by(world_size)
    content = encode_manifest(manifest)
    calls = {
        "load, files of a rank (CPU, each rank)": lambda: files_of_rank(
            manifest, rank=1, world_size=world_size
        ),
        "load, manifest (CPU, rank 0)": lambda: decode_manifest(content, source="manifest.json"),
    }
    found = {}
    for name, call in calls.items():
        began = time.process_time()
        call()
        found[name] = time.process_time() - began
    return found


def main() -> None:
    """Print the times for numbers of ranks."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"{'ranks':>6}  {'':40} {'store CPU':>10} {'all ranks':>10} {'median':>10} {'slowest':>10}  ms")
    for world_size in map(int, sys.argv[1:]):
        for name, found in measure(world_size).items():
            columns = " ".join(f"{1000 * each:10.2f}" for each in found)
            print(f"{world_size:6}  {name:40} {columns}", flush=True)
        for name, seconds in of_load(world_size).items():
            print(f"{world_size:6}  {name:40} {1000 * seconds:10.2f}", flush=True)


if __name__ == "__main__":
    main()
