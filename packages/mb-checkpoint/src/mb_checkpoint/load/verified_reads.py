"""Verification of data files while torch reads them, so that a load reads each byte once.

A file that several ranks need is read by one of them, which sends the others their pieces (`shared_files`,
`file_pieces`).
"""

import copy
import io
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from mb_checkpoint.collectives import (
    gather,
    gather_on_rank_zero,
    number_of_ranks,
    on_rank_zero,
    own_rank,
    read_on_all_ranks,
    scatter_from_rank_zero,
)
from mb_checkpoint.errors import (
    CheckpointShapeError,
    DamagedCheckpointError,
    DamagedWhileReadError,
    first_of,
)
from mb_checkpoint.formats.checksums import HASHES
from mb_checkpoint.formats.manifest import (
    Manifest,
    files_of_rank,
    find_hash_mismatches,
    is_data_file,
)
from mb_checkpoint.formats.unpickling import read_metadata, read_piece
from mb_checkpoint.load.file_pieces import Span, read_pieces, receive_pieces
from mb_checkpoint.load.shared_files import FilePart, Parts, SharedFile, assign_readers, parts_to_share

T = TypeVar("T")
IN_MODEL = "some of it is in the model already"
"""State of the run after a failed read of tensors, for `VerifiedReads.read`."""
_read_data = FileSystemReader.read_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a load has to verify, and what earlier attempts have left."""

    manifest: Manifest | None = None
    """Manifest of data files that are to be verified while they are read; None: they are, or have none."""
    overwritten: set[str] = field(default_factory=set)
    """Tensors that may hold values of checkpoints which turned out to be damaged while they were read."""

    def overwrite(self, requested: Collection[str], stored: Collection[str], *, path: Path) -> None:
        """Note the tensors that a load overwrites. The names are the same ones on all ranks.

        Args:
            requested: Tensors of the run.
            stored: Tensors of the checkpoint.
            path: Its folder.

        Raises:
            CheckpointShapeError: The checkpoint lacks a tensor that holds values of a damaged one.
        """
        if lacking := sorted(self.overwritten.difference(stored)):
            raise CheckpointShapeError(
                f"{path}: lacks {first_of(lacking, ', ')}, which a newer checkpoint has. That one turned out to be "
                "damaged while it was read, so that the model holds values of it. Start again, and name the checkpoint "
                "to load."
            )
        self.overwritten.update(set(requested).intersection(stored))


@contextmanager
def verified_reads(directory: Path, manifest: Manifest | None) -> Iterator["VerifiedReads"]:
    """Verify the data files of a checkpoint, which are read within the block. Collective over the world.

    The ranks share the files that none has hashed at the end of the block.

    Args:
        directory: The checkpoint folder.
        manifest: Its manifest; None: the files are verified already, or have none.

    Raises:
        DamagedWhileReadError: A file differs from the manifest; some of it is in the model already.
    """
    reads = VerifiedReads(directory, manifest)
    yield reads
    reads.finish()


def verify_objects(directory: Path, manifest: Manifest | None, wanted: Callable[[str], bool]) -> None:
    """Verify objects of data files that a load reads before the tensors: they decide what it requests.

    torch does not compare the checksums inside its own archives. Where one differs, or there is none, all of the file
    is hashed. Not collective.

    Args:
        directory: The checkpoint folder.
        manifest: Its manifest; None: the files are verified already, or have none.
        wanted: Selects the objects by name.

    Raises:
        DamagedCheckpointError: A file differs from the manifest.
    """
    if manifest is None:
        return
    for entry, piece in (read_metadata(directory).storage_data or {}).items():
        if wanted(entry.fqn) and not _has_right_checksums(read_piece(directory, piece)):
            files = [file for file in manifest.files if file.name == piece.relative_path]
            if problems := find_hash_mismatches(directory, files):
                raise DamagedCheckpointError(f"{directory}: {first_of(problems)}", problem=first_of(problems))


def _has_right_checksums(archive: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            return opened.testzip() is None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, zlib.error):
        return False


class VerifiedReads:
    """Reads of a checkpoint by all ranks, and what they found.

    Args:
        directory: The checkpoint folder.
        manifest: Its manifest; None: each rank reads what it needs, and nothing is verified.
    """

    def __init__(self, directory: Path, manifest: Manifest | None) -> None:
        self._directory = directory
        self._manifest = manifest
        files = () if manifest is None else manifest.files
        self._entries = {entry.name: entry for entry in files if is_data_file(entry.name)}
        self._sizes = {name: entry.size for name, entry in self._entries.items()}
        self._hashed: list[str] = []
        self._problems: list[str] = []

    def read(self, work: Callable[[], T], *, after: str = "nothing was changed") -> T:
        """Read as `read_on_all_ranks`; ranks that need pieces of the same file exchange them. Collective.

        Args:
            work: Reads with torch's FileSystemReader on this rank; not collective.
            after: State of the run after a failure, for the message.

        Raises:
            CheckpointReadError: A rank could not read it.
        """
        if self._manifest is None:
            return read_on_all_ranks(self._directory, work, after=after)
        joined = False

        def read_data(reader: FileSystemReader, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
            nonlocal joined
            requests = _by_file(reader, plan)
            if not joined:
                parts = self._parts(requests)
                joined = True
                shared = [(file, requests.pop(file.name)) for file in self._assign(parts)]
                self._read_shared(shared, planner)
            for name, request in requests.items():
                if self._is_hashed_here(name, request):
                    pieces = self._hashed_pieces(name, request.spans, receivers={})
                    request.load(planner, pieces)
                    _exhaust(pieces)
                else:
                    _read_data(request.reader, request.plan, planner)
            done: Future[None] = Future()
            done.set_result(None)
            return done

        def read_or_join() -> T:
            FileSystemReader.read_data = read_data  # type: ignore[method-assign, assignment]  # Megatron makes a reader of this class
            try:
                return work()
            finally:
                FileSystemReader.read_data = _read_data  # type: ignore[method-assign]
                if not joined:  # it needs nothing, or has failed: the other ranks wait for it
                    self._assign({})

        return read_on_all_ranks(self._directory, read_or_join, after=after)

    def _parts(self, requests: Mapping[str, "_Request"]) -> dict[str, FilePart]:
        """Return the parts of files that this rank can receive from another one."""
        parts = {
            name: FilePart(pieces=len(request.spans), size=request.size)
            for name, request in requests.items()
            if self._can_be_hashed(name) and request.end <= self._sizes[name]
        }
        return parts_to_share(parts, self._sizes)

    def _assign(self, parts: Parts) -> list[SharedFile]:
        """Return the files that this rank shares with others. Collective."""
        if number_of_ranks() == 1:
            return []
        by_rank = gather_on_rank_zero(parts)
        return scatter_from_rank_zero(lambda: assign_readers(by_rank, self._sizes))

    def _read_shared(self, files: Sequence[tuple[SharedFile, "_Request"]], planner: LoadPlanner) -> None:
        """Read or receive files that other ranks need, too; a failure is raised when these have all of theirs."""
        failures: list[Exception] = []
        for file, request in files:
            if file.reader == own_rank():
                pieces = self._hashed_pieces(file.name, request.spans, receivers=file.receivers)
            else:
                pieces = receive_pieces(file.name, spans=request.spans, reader=file.reader)
            try:
                if not failures:
                    request.load(planner, pieces)
            except Exception as error:  # noqa: BLE001  # raised below
                failures.append(error)
            try:
                _exhaust(pieces)
            except Exception as error:  # noqa: BLE001  # raised below
                failures.append(error)
        if failures:
            raise failures[0]

    def _can_be_hashed(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and name not in self._hashed and entry.algorithm in HASHES

    def _is_hashed_here(self, name: str, request: "_Request") -> bool:
        """Return whether this rank reads the larger part of a file, and therefore all of it."""
        return self._can_be_hashed(name) and 2 * request.size > self._sizes[name]

    def _hashed_pieces(
        self, name: str, spans: Sequence[Span], *, receivers: Mapping[int, int]
    ) -> Iterator[io.BytesIO]:
        entry = self._entries[name]
        found = yield from read_pieces(self._directory, like=entry, spans=spans, receivers=receivers)
        self._hashed.append(name)
        if found != entry:
            self._problems.append(f"{name} differs from the manifest (checksum)")

    def finish(self) -> None:
        """Verify the files that no rank has hashed, and raise if any differs. Collective."""
        if self._manifest is None:
            return
        hashed = gather_on_rank_zero(self._hashed)
        remaining = on_rank_zero(lambda: self._entries.keys() - set().union(*hashed))
        files = tuple(entry for entry in self._entries.values() if entry.name in remaining)
        share = files_of_rank(
            replace(self._manifest, files=files), rank=own_rank(), world_size=number_of_ranks()
        )
        by_rank = gather(self._problems + find_hash_mismatches(self._directory, share))
        if problems := [line for lines in by_rank for line in lines]:
            raise DamagedWhileReadError(
                f"{self._directory}: {first_of(problems)}", problem=first_of(problems)
            )


class _Request:
    """Items that a rank reads of one file, in the order of their pieces."""

    def __init__(self, reader: FileSystemReader, plan: LoadPlan) -> None:
        def span(item: ReadItem) -> Span:
            position = reader.storage_data[item.storage_index]
            return position.offset, position.length

        self.reader = reader
        self.plan = replace(plan, items=sorted(plan.items, key=span))
        self.spans = sorted({span(item) for item in plan.items})

    @property
    def size(self) -> int:
        """Bytes of the pieces."""
        return sum(length for _, length in self.spans)

    @property
    def end(self) -> int:
        """Position behind the last byte of the pieces."""
        return max(offset + length for offset, length in self.spans)

    def load(self, planner: LoadPlanner, pieces: Iterator[io.BytesIO]) -> None:
        """Load the items from the pieces, in place of the file."""
        last: tuple[Span, io.BytesIO] = (-1, -1), io.BytesIO()

        def next_piece(_file: Any, position: Any) -> io.BytesIO:
            nonlocal last
            span = position.offset, position.length
            if span != last[0]:
                last = span, next(pieces)
            last[1].seek(0)
            return last[1]

        reader = copy.copy(self.reader)
        reader._slice_file = next_piece  # type: ignore[method-assign, assignment]
        _read_data(reader, self.plan, planner)


def _by_file(reader: FileSystemReader, plan: LoadPlan) -> dict[str, _Request]:
    items: dict[str, list[ReadItem]] = {}
    for item in plan.items:
        items.setdefault(reader.storage_data[item.storage_index].relative_path, []).append(item)
    return {name: _Request(reader, replace(plan, items=of_file)) for name, of_file in items.items()}


def _exhaust(pieces: Iterator[io.BytesIO]) -> None:
    for _ in pieces:
        pass
