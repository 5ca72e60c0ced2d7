"""Verification of data files while torch reads them, so that a load reads each byte once."""

import copy
import io
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from mb_checkpoint.collectives import (
    gather,
    gather_on_rank_zero,
    number_of_ranks,
    on_rank_zero,
    own_rank,
)
from mb_checkpoint.errors import (
    CheckpointShapeError,
    DamagedCheckpointError,
    DamagedWhileReadError,
    first_of,
)
from mb_checkpoint.formats.checksums import HASHES
from mb_checkpoint.formats.manifest import (
    CHUNK_BYTES,
    FileEntry,
    Manifest,
    files_of_rank,
    find_hash_mismatches,
    is_data_file,
)
from mb_checkpoint.formats.unpickling import read_metadata, read_piece

ReadData = Callable[[FileSystemReader, LoadPlan, LoadPlanner], Future[None]]


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
def verified_reads(directory: Path, manifest: Manifest | None) -> Iterator[None]:
    """Verify the data files of a checkpoint, which torch's reader reads within the block. Collective over the world.

    A rank that reads more than half of a file reads all of it, in order, and hashes it on the way. The ranks share what
    none has hashed at the end of the block.

    Args:
        directory: The checkpoint folder.
        manifest: Its manifest; None: the files are verified already, or have none.

    Raises:
        DamagedWhileReadError: A file differs from the manifest; some of it is in the model already.
    """
    if manifest is None:
        yield
        return
    reads = _Reads(directory, manifest, FileSystemReader.read_data)

    def read_data(reader: FileSystemReader, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        return reads.read_data(reader, plan, planner)

    FileSystemReader.read_data = read_data  # type: ignore[method-assign, assignment]  # Megatron makes a reader of this class
    try:
        yield
    finally:
        FileSystemReader.read_data = reads.plain  # type: ignore[method-assign, assignment]
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


class _Reads:
    """Reads of this rank, and what they found."""

    def __init__(self, directory: Path, manifest: Manifest, plain: ReadData) -> None:
        self.plain = plain
        self._directory = directory
        self._manifest = manifest
        self._entries = {entry.name: entry for entry in manifest.files if is_data_file(entry.name)}
        self._hashed: list[str] = []
        self._problems: list[str] = []

    def read_data(self, reader: FileSystemReader, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read as torch does, and hash the files of which this rank reads the larger part."""
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(reader.storage_data[item.storage_index].relative_path, []).append(item)
        for name, items in by_file.items():
            of_file = replace(plan, items=items)
            if self._is_hashed_here(name, {_span(reader, item) for item in items}):
                self._read_all(self._entries[name], reader, of_file, planner)
            else:
                self.plain(reader, of_file, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _is_hashed_here(self, name: str, spans: set[tuple[int, int]]) -> bool:
        entry = self._entries.get(name)
        if entry is None or name in self._hashed or _algorithm(entry) not in HASHES:
            return False
        return 2 * sum(length for _, length in spans) > entry.size

    def _read_all(
        self, entry: FileEntry, reader: FileSystemReader, plan: LoadPlan, planner: LoadPlanner
    ) -> None:
        """Read pieces of a file and hash all of it."""
        items = sorted(plan.items, key=lambda item: _span(reader, item))
        stream = _HashedFile(_algorithm(entry), pieces=len(items))
        sequential = copy.copy(reader)
        sequential._slice_file = stream.piece  # type: ignore[method-assign, assignment]
        self.plain(sequential, replace(plan, items=items), planner)
        self._hashed.append(entry.name)
        if stream.entry(entry.name) != entry:
            self._problems.append(f"{entry.name} differs from the manifest (checksum)")

    def finish(self) -> None:
        """Verify the files that no rank has hashed, and raise if any differs. Collective."""
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


class _HashedFile:
    """File that is read once, in order, and hashed.

    Args:
        algorithm: Algorithm of the checksum.
        pieces: Number of pieces that are read of it; behind the last one, the rest is hashed.
    """

    def __init__(self, algorithm: Any, *, pieces: int) -> None:
        self._algorithm = algorithm
        self._digest = HASHES[algorithm]()
        self._left = pieces
        self._end = 0
        self._last: tuple[int, bytes] = (-1, b"")

    def piece(self, file: BinaryIO, position: Any) -> io.BytesIO:
        """Return a piece, in place of a view on the file; each begins where the last one did, or behind it."""
        self._left -= 1
        if position.offset != self._last[0]:
            self._skip(file, position.offset - self._end)
            self._last = (position.offset, self._read(file, position.length))
        if not self._left:
            self._skip(file, None)
        return io.BytesIO(self._last[1])

    def entry(self, name: str) -> FileEntry:
        """Return the entry of the file, which has been read to its end."""
        return FileEntry(name=name, size=self._end, checksum=f"{self._algorithm}:{self._digest.hexdigest()}")

    def _skip(self, file: BinaryIO, count: int | None) -> None:
        """Hash the next bytes; None: all of them."""
        while count is None or count > 0:
            chunk = self._read(file, CHUNK_BYTES if count is None else min(count, CHUNK_BYTES))
            if not chunk:
                return
            count = None if count is None else count - len(chunk)

    def _read(self, file: BinaryIO, count: int) -> bytes:
        content = file.read(count)
        self._digest.update(content)
        self._end += len(content)
        return content


def _span(reader: FileSystemReader, item: ReadItem) -> tuple[int, int]:
    """Return offset and length of the piece from which an item is read."""
    position = reader.storage_data[item.storage_index]
    return position.offset, position.length


def _algorithm(entry: FileEntry) -> Any:
    return entry.checksum.partition(":")[0]
