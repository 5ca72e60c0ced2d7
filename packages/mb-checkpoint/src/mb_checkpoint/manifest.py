"""manifest.json: every file of a checkpoint with its size and SHA-256, and what the checkpoint is."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from mb_checkpoint.errors import ManifestError
from mb_checkpoint.layout import MANIFEST

FORMAT = 1
CHUNK_BYTES = 1 << 20
_SEAL = "manifest_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint."""

    name: str
    """Path inside the checkpoint folder, with forward slashes."""
    size: int
    """Bytes."""
    sha256: str
    """Of the content, in hexadecimal; `sha256sum` gives the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint consists of."""

    step: int
    files: tuple[FileEntry, ...]
    """Every file but the manifest itself, by name."""
    ckpt_format: str = "torch_dist"
    """Layout of the tensor files."""
    layout: Mapping[str, int] = field(default_factory=dict)
    """Parallel sizes of the run that wrote it; of modules with ranks of their own as `<module>.<size>`."""
    content: Mapping[str, Any] = field(default_factory=dict)
    """Sections that are stored, and how the optimizer's is divided."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of what wrote it."""

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(entry.size for entry in self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of a manifest.json: JSON with sorted keys, sealed with a hash of itself."""
    body = {"format": FORMAT, **asdict(manifest)}
    seal = hashlib.sha256(_rendered(body)).hexdigest()
    return _rendered({**body, _SEAL: seal})


def decode_manifest(content: bytes, *, source: str) -> Manifest:
    """Return what a manifest.json says. A single changed byte anywhere in it is noticed.

    Raises:
        ManifestError: The content was changed, or is of another format; `source` names it in the message.
    """
    try:
        body = json.loads(content)
        seal = body.pop(_SEAL)
        whole = content == _rendered({**body, _SEAL: seal})
        if not whole or seal != hashlib.sha256(_rendered(body)).hexdigest():
            raise ManifestError(f"{source}: was changed after it was written. Take another checkpoint.")
        number = body.pop("format")
        if number != FORMAT:
            raise ManifestError(
                f"{source}: has format {number} and this version knows {FORMAT}. Use a newer mb-checkpoint."
            )
        return Manifest(**{**body, "files": tuple(FileEntry(**entry) for entry in body["files"])})
    except ManifestError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ManifestError(
            f"{source}: is no manifest ({type(error).__name__}: {error}). Take another checkpoint."
        ) from error


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a checkpoint folder; None where there is none, as in checkpoints of other programs.

    Raises:
        ManifestError: It is damaged.
        OSError: It cannot be read.
    """
    path = directory / MANIFEST
    return decode_manifest(path.read_bytes(), source=str(path)) if path.is_file() else None


def hash_file(path: Path, *, name: str, progress: Callable[[int], object] = lambda _bytes: None) -> FileEntry:
    """Read a file and return its entry; `progress` is told each number of bytes read.

    Raises:
        OSError: It cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            progress(len(chunk))
    return FileEntry(name=name, size=size, sha256=digest.hexdigest())


def find_size_mismatches(directory: Path, manifest: Manifest) -> list[str]:
    """Compare the sizes on disk with the manifest; one line per file that is missing, shorter or longer."""
    problems = []
    for entry in manifest.files:
        path = directory / entry.name
        if not path.is_file():
            problems.append(f"lacks {entry.name}")
        elif path.stat().st_size != entry.size:
            problems.append(f"{entry.name} has {path.stat().st_size} of {entry.size} bytes")
    return problems


def find_hash_mismatches(
    directory: Path,
    entries: Iterable[FileEntry],
    *,
    threads: int = 4,
    progress: Callable[[int], object] = lambda _bytes: None,
) -> list[str]:
    """Read files and compare their hashes with the manifest's; one line per file that differs or cannot be read.

    Args:
        directory: The checkpoint folder.
        entries: What to compare, all of a manifest or a share of it.
        threads: Files that are read at the same time.
        progress: Told each number of bytes read, by one thread at a time.
    """
    turn = Lock()

    def told(count: int) -> None:
        with turn:
            progress(count)

    def problem(entry: FileEntry) -> str | None:
        try:
            found = hash_file(directory / entry.name, name=entry.name, progress=told)
        except OSError as error:
            return f"{entry.name} cannot be read ({error.strerror})"
        return None if found == entry else f"{entry.name} differs from the manifest (SHA-256)"

    with ThreadPoolExecutor(threads) as pool:
        return [line for line in pool.map(problem, list(entries)) if line is not None]


def files_of_rank(manifest: Manifest, *, rank: int, world_size: int) -> list[FileEntry]:
    """Return the files that one of several readers checks: about the same number of bytes for each."""
    shares: list[list[FileEntry]] = [[] for _ in range(world_size)]
    filled = [0] * world_size
    for entry in sorted(manifest.files, key=lambda each: (-each.size, each.name)):
        emptiest = filled.index(min(filled))
        shares[emptiest].append(entry)
        filled[emptiest] += entry.size
    return shares[rank]


def _rendered(body: Mapping[str, Any]) -> bytes:
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()
