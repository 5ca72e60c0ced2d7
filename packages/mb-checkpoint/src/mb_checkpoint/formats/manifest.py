"""manifest.json: size and checksum of every file of a checkpoint, with its layout, content and versions."""

import hashlib
import heapq
import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from mb_checkpoint.errors import ManifestError
from mb_checkpoint.formats.checksums import HASHES, Checksum
from mb_checkpoint.formats.layout import MANIFEST
from mb_schema.file_names import FileNameError, checked_name, path_inside

FORMAT = 2
"""Version of the file. Version 1 had a key `sha256` in place of `checksum` for each file, and is still read."""
CHUNK_BYTES = 1 << 20
READING_THREADS = 4
"""Number of files that are read concurrently."""
LARGEST = 16 << 20
"""Bytes of the largest manifest.json that is read: about 100,000 files."""
_LARGEST_NUMBER = 2**63
_CHECKSUM = re.compile(r"\w{1,40}:[0-9a-f]{1,128}", re.ASCII)
_DATA_FILE = re.compile(r"__(\d{1,9})_\d+\.distcp", re.ASCII)
"""Name of a data file: rank that wrote it, and number of the file."""
_HASH_KEY = "manifest_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """File of a checkpoint."""

    name: str
    """Path inside the checkpoint folder, with forward slashes."""
    size: int
    """Bytes."""
    checksum: str
    """Algorithm and checksum of the content in hexadecimal, such as "xxh3_128:9c1f..."."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm, which this version may not know."""
        return self.checksum.partition(":")[0]


class ContentHash:
    """Size and checksum of content that arrives in chunks.

    Args:
        algorithm: One of `HASHES`.
    """

    def __init__(self, algorithm: str) -> None:
        self._algorithm: Any = algorithm
        self._digest = HASHES[self._algorithm]()
        self.size = 0
        """Bytes so far."""

    def update(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append a chunk."""
        self._digest.update(chunk)
        self.size += len(chunk)

    def entry(self, name: str) -> FileEntry:
        """Return the entry of a file with this content."""
        return FileEntry(name=name, size=self.size, checksum=f"{self._algorithm}:{self._digest.hexdigest()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Record of the files and the properties of a checkpoint."""

    step: int
    files: tuple[FileEntry, ...]
    """Every file except the manifest itself, by name."""
    ckpt_format: str = "torch_dist"
    """Layout of the tensor files."""
    layout: Mapping[str, int] = field(default_factory=dict)
    """Parallel sizes of the run that wrote it; `<module>.<size>` if modules have separate ranks."""
    content: Mapping[str, Any] = field(default_factory=dict)
    """Stored sections, and the sharding of the optimizer state."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that wrote it."""

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(entry.size for entry in self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of a manifest.json: JSON with sorted keys and a hash of itself."""
    body = {"format": FORMAT, **asdict(manifest)}
    own_hash = hashlib.sha256(_rendered(body)).hexdigest()
    return _rendered({**body, _HASH_KEY: own_hash})


def decode_manifest(content: bytes, *, source: str) -> Manifest:
    """Parse the content of a manifest.json. A single changed byte is detected.

    Each file has a name of its own inside the folder of the checkpoint: a reader opens them by name.

    Raises:
        ManifestError: The content was changed, or has another format; the message names `source`.
    """
    if len(content) > LARGEST:
        raise _unusable(source, f"has more than {LARGEST >> 20} MiB")
    try:
        body = json.loads(content)
        own_hash = body.pop(_HASH_KEY)
        unchanged = content == _rendered({**body, _HASH_KEY: own_hash})
        if not unchanged or own_hash != hashlib.sha256(_rendered(body)).hexdigest():
            raise _unusable(source, "was changed after it was written")
        number = body.pop("format")
        if number not in (1, FORMAT):
            raise _unusable(
                source,
                f"has format {number} and this version knows {FORMAT}",
                fix="Use a newer mb-checkpoint",
            )
        make_entry = _entry_of_format_1 if number == 1 else FileEntry
        manifest = Manifest(**{**body, "files": tuple(make_entry(**entry) for entry in body["files"])})
        if problem := _problem_in(manifest):
            raise _unusable(source, problem)
        return manifest
    except ManifestError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _unusable(source, f"is not a manifest ({type(error).__name__}: {error})") from error


def _problem_in(manifest: Manifest) -> str | None:
    """Return what is wrong with the names and the types of values in a manifest; None if they are right."""
    mappings = (manifest.layout, manifest.content, manifest.versions)
    if not all(isinstance(mapping, dict) for mapping in mappings) or not isinstance(
        manifest.ckpt_format, str
    ):
        return "has a section of another type"
    numbers = (manifest.step, *(entry.size for entry in manifest.files), *manifest.layout.values())
    if not all(type(value) is int and 0 <= value < _LARGEST_NUMBER for value in numbers):
        return "has a step or a size that is none"
    names = {MANIFEST}
    for entry in manifest.files:
        try:
            checked_name(entry.name)
        except FileNameError as error:
            return str(error)
        if entry.name in names:
            return f"names {entry.name} twice"
        if not (isinstance(entry.checksum, str) and _CHECKSUM.fullmatch(entry.checksum)):
            return f"has no checksum of {entry.name}"
        names.add(entry.name)
    return None


def _entry_of_format_1(*, name: str, size: int, sha256: str) -> FileEntry:
    return FileEntry(name=name, size=size, checksum=f"sha256:{sha256}")


def _unusable(source: str, problem: str, *, fix: str = "Take another checkpoint") -> ManifestError:
    return ManifestError(f"{source}: {problem}. {fix}.", problem=problem)


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a checkpoint folder; None if there is none, as in checkpoints of other programs.

    Raises:
        ManifestError: It is damaged.
        OSError: It cannot be read.
    """
    path = directory / MANIFEST
    return decode_manifest(read_bytes(path), source=str(path)) if path.is_file() else None


def read_bytes(path: Path) -> bytes:
    """Return the content of a manifest.json, or more of it than `decode_manifest` accepts.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        return stream.read(LARGEST + 1)


def hash_file(
    path: Path,
    *,
    name: str,
    algorithm: Checksum = "xxh3_128",
    progress: Callable[[int], object] = lambda _bytes: None,
) -> FileEntry:
    """Compute the checksum of a file and return its entry.

    Args:
        path: The file.
        name: Name in the entry.
        algorithm: Algorithm of the checksum.
        progress: Called with the number of bytes of each chunk.

    Raises:
        OSError: The file cannot be read.
    """
    content = ContentHash(algorithm)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            content.update(chunk)
            progress(len(chunk))
    return content.entry(name)


def hash_chunks(
    chunks: Iterable[bytes], *, like: FileEntry, each: Callable[[bytes], object] = lambda _chunk: None
) -> FileEntry:
    """Compute the checksum of content that arrives in chunks, up to one chunk beyond the size of an entry.

    Args:
        chunks: The content.
        like: Entry with the name, the algorithm and the expected size.
        each: Called with each chunk.
    """
    if like.algorithm not in HASHES:
        return replace(like, checksum=f"{like.algorithm}:")
    content = ContentHash(like.algorithm)
    for chunk in chunks:
        content.update(chunk)
        if content.size > like.size:
            break
        each(chunk)
    return content.entry(like.name)


def find_size_mismatches(directory: Path, manifest: Manifest) -> list[str]:
    """Compare the sizes on disk with the manifest; return a line for each missing, truncated or longer file."""
    problems = []
    for entry in manifest.files:
        try:
            path = path_inside(directory, entry.name)
        except FileNameError as error:
            problems.append(f"{MANIFEST} {error}")
            continue
        if not path.is_file():
            problems.append(f"lacks {entry.name}")
        elif path.stat().st_size != entry.size:
            problems.append(f"{entry.name} has {path.stat().st_size} of {entry.size} bytes")
    return problems


def find_hash_mismatches(
    directory: Path,
    entries: Iterable[FileEntry],
    *,
    progress: Callable[[int], object] = lambda _bytes: None,
) -> list[str]:
    """Compare the checksums of files with the manifest; return a line for each file that differs or is unreadable.

    Args:
        directory: The checkpoint folder.
        entries: Entries to compare, all of a manifest or a share of them.
        progress: Called with the number of bytes of each chunk, by one thread at a time.
    """
    lock = Lock()

    def report(count: int) -> None:
        with lock:
            progress(count)

    def problem(entry: FileEntry) -> str | None:
        algorithm: Any = entry.algorithm
        if algorithm not in HASHES:
            return f"{entry.name} has a checksum of an unknown kind in the manifest ({algorithm:.20})"
        try:
            actual = hash_file(
                path_inside(directory, entry.name), name=entry.name, algorithm=algorithm, progress=report
            )
        except FileNameError as error:
            return f"{MANIFEST} {error}"
        except OSError as error:
            return f"{entry.name} cannot be read ({error.strerror})"
        return None if actual == entry else f"{entry.name} differs from the manifest (checksum)"

    with ThreadPoolExecutor(READING_THREADS) as pool:
        return [line for line in pool.map(problem, list(entries)) if line is not None]


def is_data_file(name: str) -> bool:
    """Return whether a file holds tensors and objects that a rank wrote, by its name."""
    return _DATA_FILE.fullmatch(name) is not None


def files_of_rank(manifest: Manifest, *, rank: int, world_size: int) -> list[FileEntry]:
    """Return the files that one of several readers reads: about the same number of bytes for each reader.

    As many ranks as those that saved get the files that they wrote, up to twice the mean: the same rank reads them at a
    load, so that its node fetches them once and has them in its page cache.
    """
    saved_by_these = manifest.layout.get("world_size") == world_size
    most = 2 * sum(entry.size for entry in manifest.files) // world_size
    shares: list[list[FileEntry]] = [[] for _ in range(world_size)]
    filled, others = [0] * world_size, []
    for entry in sorted(manifest.files, key=lambda each: (-each.size, each.name)):
        match = _DATA_FILE.fullmatch(entry.name) if saved_by_these else None
        writer = -1 if match is None else int(match[1])
        if 0 <= writer < world_size and filled[writer] + entry.size <= most:
            shares[writer].append(entry)
            filled[writer] += entry.size
        else:
            others.append(entry)
    heap = [(size, each) for each, size in enumerate(filled)]
    heapq.heapify(heap)
    for entry in others:
        size, emptiest = heap[0]
        shares[emptiest].append(entry)
        heapq.heapreplace(heap, (size + entry.size, emptiest))
    return shares[rank]


def _rendered(body: Mapping[str, Any]) -> bytes:
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()
