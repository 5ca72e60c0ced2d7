"""Traffic of a run with many simulated ranks, as counts: the ranks are the real classes, without threads.

Prints the table for any number of ranks:

    python tests/scale/laws.py 1024 4096
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

from counting_store import CountingStore

from mb_checkpoint.formats.manifest import FileEntry, Manifest, files_of_rank
from mb_checkpoint.save.commit import fsync_and_write_manifest, open_staging
from mb_checkpoint.save.commit_barrier import CommitBarrier
from mb_checkpoint.save.finalize import FinalizeJob, finalize_save
from mb_checkpoint.save.retention import PruneJob
from mb_checkpoint.save.writing import WrittenFiles, hash_files, write_result
from mb_checkpoint.storage.checkpoints import upload_checkpoint, upload_share
from mb_checkpoint.storage.owner import claim_storage
from mb_checkpoint.storage.uploader import Destination, StorageUploader, UploadRanks
from mb_resilience import HangReporter, StopRequests
from mb_resilience.hangs.collective_records import GroupCollectives

IDLE = SimpleNamespace(received=None)
"""Watcher without a request."""


class Traffic(NamedTuple):
    """Requests of all ranks together, and what they carry."""

    messages: float
    keys: float
    bytes: float


def traffic(store: CountingStore, *, per: int = 1) -> Traffic:
    """Return the traffic of a store, for each of so many steps, and reset its counters."""
    counted = Traffic(store.messages / per, store.keys / per, store.bytes / per)
    store.__init__(store.data)  # type: ignore[misc]
    return counted


class StopRanks:
    """Stop requests of all ranks, whose threads are run by hand.

    Args:
        world_size: Number of ranks.
        deadline: Whether there is a duration limit, too.
    """

    def __init__(self, world_size: int, *, deadline: bool = False) -> None:
        self.of_main_threads = CountingStore()
        self.of_threads = self.of_main_threads.another_connection()
        self.connections = 0
        self.ranks = [
            StopRequests(
                IDLE,
                deadline=IDLE if deadline else None,
                store=self.of_main_threads,
                rank=rank,
                world_size=world_size,
                connect=self._connect,
            )
            for rank in range(world_size)
        ]
        self._exchanges = [rank._agreed._exchange for rank in self.ranks]
        for exchange in self._exchanges:
            exchange._thread = self  # "started"
        self._step = 0

    def _connect(self) -> CountingStore:
        self.connections += 1
        return self.of_threads

    def _run_threads(self) -> None:
        for rank, exchange in enumerate(self._exchanges):
            (exchange._read_wanted if rank else exchange._publish_newest)()

    def step(self) -> None:
        """End a step on all ranks."""
        self._step += 1
        for rank in self.ranks:
            rank.stop_requested(self._step)
            if rank.duration_stop_requested is not None:
                rank.duration_stop_requested(self._step)
        self._run_threads()

    def batch(self) -> None:
        """Begin a batch of an evaluation on all ranks."""
        for rank in self.ranks:
            rank.stop_evaluation()
        self._run_threads()


def of_steps(world_size: int, *, steps: int = 10) -> dict[str, Traffic]:
    """Return the traffic of the agreed stop in a step, with a duration limit, and in a batch of an evaluation."""
    ranks = StopRanks(world_size, deadline=True)
    ranks.step()
    traffic(ranks.of_threads)
    for _ in range(steps):
        ranks.step()
    found = {"agreed stop, a step": traffic(ranks.of_threads, per=steps)}
    for _ in range(steps):
        ranks.batch()
    found["agreed stop, a batch of an evaluation"] = traffic(ranks.of_threads, per=steps)
    found["agreed stop, in the main thread"] = traffic(ranks.of_main_threads)
    found["agreed stop, connections"] = Traffic(ranks.connections, 0, 0)
    return found


def of_save(world_size: int, *, steps: int = 100) -> dict[str, Traffic]:
    """Return the traffic of the barrier while a save is in flight for so many steps, at its end, and at a wait."""
    store = CountingStore()

    def new(name: str) -> list[CommitBarrier]:
        return [
            CommitBarrier(store, rank=rank, world_size=world_size, name=name) for rank in range(world_size)
        ]

    barriers, found = new(".saving_iter_0001000.0a1b2c3d"), {}
    for _ in range(steps):
        assert barriers[0].failures() is None
        for barrier in barriers:
            assert barrier.decide(None) is None
    found[f"save in flight, all of {steps} steps"] = traffic(store)
    for barrier in barriers:
        barrier.report("")
    found["save, reports of all ranks"] = traffic(store)
    assert barriers[0].failures() == []
    found["save, reports read by rank 0"] = traffic(store)
    waiting = new(".saving_iter_0002000.0a1b2c3d")
    for barrier in waiting:
        barrier.decide_now(None)
    traffic(store)
    for barrier in waiting:
        barrier.decide_now(None)
    found["save, one poll of all ranks that wait"] = traffic(store)
    return found


def saved_by(world_size: int) -> Manifest:
    """Return the manifest of a save in which each rank wrote two files of slightly different sizes."""
    files = [
        FileEntry(name=f"__{rank}_{number}.distcp", size=900 + rank % 200, checksum="xxh3_128:0")
        for rank in range(world_size)
        for number in range(2)
    ]
    small = FileEntry(name="train_state.pt", size=100, checksum="xxh3_128:0")
    return Manifest(step=1, files=(*files, small), layout={"world_size": world_size})


def of_load(world_size: int) -> dict[str, Traffic]:
    """Return how many files all ranks verify, those of other ranks among them, and the most bytes of one rank."""
    manifest = saved_by(world_size)
    shares = [files_of_rank(manifest, rank=rank, world_size=world_size) for rank in range(world_size)]
    foreign = [
        entry
        for rank, share in enumerate(shares)
        for entry in share
        if not entry.name.startswith((f"__{rank}_", "train_state"))
    ]
    read = [sum(entry.size for entry in share) for share in shares]
    return {
        "load, files verified": Traffic(sum(map(len, shares)), 0, sum(read)),
        "load, files that another rank wrote": Traffic(len(foreign), 0, sum(e.size for e in foreign)),
        "load, the rank with the most bytes": Traffic(0, 0, max(read)),
    }


_opened_or_removed: list[str] | None = None


def _count_files(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened_or_removed is not None and event in ("open", "os.remove"):
        _opened_or_removed.append(event)


sys.addaudithook(_count_files)


def files_of(work: Callable[[], object]) -> Traffic:
    """Return how many files work opens and removes, in this process."""
    global _opened_or_removed  # an audit hook stays for the life of a process
    _opened_or_removed = []
    try:
        work()
        return Traffic(len(_opened_or_removed), 0, 0)
    finally:
        _opened_or_removed = None


def of_commit(world_size: int) -> dict[str, Traffic]:
    """Return the files that rank 0 opens and removes before a save is reported, and to delete an old checkpoint."""
    found = {}
    with TemporaryDirectory() as folder:
        root = Path(folder)
        pruning = PruneJob(root=root, step=2, keep=1, retain_interval=None)
        for step, in_background in ((1, False), (2, True)):
            staging = open_staging(root, step)
            for name in ("train_state.pt", "run_config.yaml", "metadata.json", ".metadata"):
                (staging / name).write_bytes(b"1")
            results = []
            for rank in range(world_size):
                (staging / f"__{rank}_0.distcp").write_bytes(bytes(10))
                results.append(WrittenFiles(files=hash_files(staging, rank, algorithm="xxh3_128")))
                if in_background:
                    write_result(staging, rank, results[-1])
            job = FinalizeJob(
                root=root,
                staging=staging,
                world_size=world_size,
                index=None,
                facts=Manifest(step=step, files=()),
                pruning=pruning,
            )
            name = f"save {'in the background' if in_background else 'at once'}, files before its report"
            given = None if in_background else results
            found[name] = files_of(partial(finalize_save, job, results=given))
        found["save, files of an old checkpoint, afterwards"] = files_of(pruning.run)
    return found


class CountingStorage:
    """Storage in memory that counts requests and the bytes sent and read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests = self.bytes = 0

    def put(self, source: Path, name: str) -> None:
        """Store a file."""
        self.files[name] = source.read_bytes()
        self._count(self.files[name])

    def read(self, name: str) -> Iterator[bytes] | None:
        """Return a file in one chunk."""
        content = self.files.get(name)
        self._count(content or b"")
        return None if content is None else iter([content])

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the sizes of all files."""
        self._count(b"")
        return {name: len(content) for name, content in self.files.items() if name.startswith(prefix)}

    def delete(self, name: str) -> None:
        """Delete a file."""
        self._count(b"")
        del self.files[name]

    def _count(self, content: bytes) -> None:
        self.requests += 1
        self.bytes += len(content)

    def counted(self) -> Traffic:
        """Return the traffic since the last call."""
        found = Traffic(self.requests, 0, self.bytes)
        self.requests = self.bytes = 0
        return found


def of_copy(world_size: int) -> dict[str, Traffic]:
    """Return the traffic of a copy to a storage: in the store of the ranks, of one rank, and of rank 0 at the end."""
    store, storage = CountingStore(), CountingStorage()
    with TemporaryDirectory() as folder:
        checkpoint = Path(folder, "iter_0000001")
        checkpoint.mkdir()
        for rank in range(world_size):
            (checkpoint / f"__{rank}_0.distcp").write_bytes(bytes(1000))
        facts = Manifest(step=1, files=(), layout={"world_size": world_size})
        fsync_and_write_manifest(checkpoint, facts)
        owner = claim_storage(storage, Path(folder), name="storage")
        uploaders = [
            StorageUploader(
                Destination(address="", owner=owner),
                log=lambda line: None,
                ranks=UploadRanks(store=store, rank=rank, world_size=world_size, name="upload/a"),
            )
            for rank in range(world_size)
        ]
        by_rank: list[Traffic] = []

        def run(rank: int, part: dict[str, Any]) -> dict[str, Any]:
            """Copy as the process of a rank does; the other ranks act once rank 0 has decided."""
            if "shared" in part:
                done = upload_checkpoint(checkpoint, storage, owner=owner, shared=part["shared"])
                return {
                    "folder": done.folder,
                    "total_bytes": done.total_bytes,
                    "copied_bytes": done.copied_bytes,
                }
            upload_share(checkpoint, storage, owner=owner, rank=rank, world_size=world_size, read_back=True)
            by_rank.append(storage.counted())
            for other in uploaders[1:] if rank == 0 else ():
                other._help(checkpoint, 1, other._ranks)  # type: ignore[arg-type]
            return {}

        for rank, uploader in enumerate(uploaders):
            uploader._run = lambda part, _, rank=rank: run(rank, part)  # type: ignore[assignment,misc]
        storage.counted()
        uploaders[0]._copy_with_others(checkpoint, 1, uploaders[0]._ranks)  # type: ignore[arg-type]
        manifest_bytes = (checkpoint / "manifest.json").stat().st_size
        end = storage.counted()
    return {
        "copy, store of the ranks": traffic(store),
        "copy, the rank with the most": max(by_rank, key=lambda each: each.bytes),
        "copy, rank 0 at the end, without the manifest": Traffic(end.messages, 0, end.bytes - manifest_bytes),
    }


def groups_of(rank: int, world_size: int) -> tuple[GroupCollectives, ...]:
    """Return collectives of a rank in groups as Megatron forms them: the world, TP 8, DP, CP with DP, PP 2."""
    members = {
        "world": range(world_size),
        "tp": range(rank // 8 * 8, rank // 8 * 8 + 8),
        "dp": range(rank % 8, world_size, 8),
        "dp_cp": range(rank % 4, world_size, 4),
        "pp": range(rank % (world_size // 2), world_size, world_size // 2),
    }
    return tuple(
        GroupCollectives(
            group=name, ranks=tuple(ranks), number=7, operation="all_reduce", size="1024x8192", pending=True
        )
        for name, ranks in members.items()
    )


def of_hang(world_size: int, *, silent: int | None = None) -> tuple[dict[str, Traffic], list[str]]:
    """Return the traffic of heartbeats and of a report on a hang of all ranks, and the reports.

    Args:
        world_size: Number of ranks.
        silent: Rank that sends no heartbeats; None: all send them.
    """
    store, now, logged = CountingStore(), [0.0], []
    reporters = [
        HangReporter(
            seconds=100,
            store=store,
            rank=rank,
            world_size=world_size,
            reporting_rank=world_size - 1,
            read_collectives=lambda rank=rank: groups_of(rank, world_size),
            log=logged.append,
            clock=lambda: now[0],
        )
        for rank in range(world_size)
    ]
    for reporter in reporters:
        reporter._write_stacks = lambda folder: None
        reporter.note("step", 7)

    def beat() -> Iterator[None]:
        now[0] += 10
        for rank, reporter in enumerate(reporters):
            if rank != silent:
                reporter._beat()
        yield

    next(beat())
    found = {"heartbeat of all ranks": traffic(store)}
    beats = 0
    while not logged or any(map(is_investigating, reporters)):
        next(beat())
        beats += 1
        assert beats < 60
    heartbeats = found["heartbeat of all ranks"]
    every = traffic(store)
    found["hang report, without the heartbeats"] = Traffic(
        every.messages - beats * heartbeats.messages,
        every.keys - beats * heartbeats.keys,
        every.bytes - beats * heartbeats.bytes,
    )
    return found, logged


def is_investigating(reporter: HangReporter) -> bool:
    """Return whether a reporter has to do a further part of a report."""
    investigation = reporter._investigation
    return investigation is not None and investigation.gi_frame is not None


LAWS: tuple[Callable[[int], dict[str, Traffic]], ...] = (
    of_steps,
    of_save,
    of_commit,
    of_load,
    of_copy,
    lambda n: of_hang(n)[0],
)


def main() -> None:
    """Print the traffic for numbers of ranks."""
    for world_size in map(int, sys.argv[1:]):
        for law in LAWS:
            for name, counted in law(world_size).items():
                print(
                    f"{world_size:6} ranks  {name:40} {counted.messages:12,.1f} messages {counted.keys:12,.1f} keys "
                    f"{counted.bytes:14,.0f} bytes",
                    flush=True,
                )


if __name__ == "__main__":
    main()
