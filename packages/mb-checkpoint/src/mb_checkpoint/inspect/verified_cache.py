"""Cache of verification results, so that a process reads the contents of each checkpoint only once."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from mb_checkpoint.errors import ManifestError, file_problem
from mb_checkpoint.formats.layout import MANIFEST
from mb_checkpoint.formats.manifest import find_hash_mismatches, read_manifest
from mb_checkpoint.load.select import find_problems


class VerifiedCache:
    """Cache of the results of comparing checkpoints with their manifests.

    Sizes are compared at each call; contents are read and hashed once. The hash of the manifest is the key, so that a
    folder that was replaced in the meantime is read again. A cache without `progress` can be pickled.

    Args:
        progress: Called with the number of bytes of each chunk that is read.
    """

    def __init__(self, *, progress: Callable[[int], object] | None = None) -> None:
        self._progress = progress
        self._known: dict[Path, tuple[str | None, tuple[str, ...]]] = {}

    def distrust(self, directory: Path, reason: str) -> None:
        """Record a checkpoint as damaged because the caller has found it damaged."""
        self._known[directory.absolute()] = (_seal(directory), (reason,))

    def problems(self, directory: Path, *, contents: bool = True) -> list[str]:
        """Return the problems of a checkpoint; an empty list if it is intact or has no manifest to compare with.

        Args:
            directory: Folder of the checkpoint.
            contents: Hash contents that are not in the cache; False compares only the sizes of those.
        """
        problems_found = find_problems(directory)
        seal = _seal(directory)
        known_seal, problems = self._known.get(directory.absolute(), (None, ()))
        if problems_found or seal is None:
            return problems_found
        if known_seal == seal:
            return list(problems)
        if not contents:
            return []
        try:
            manifest = read_manifest(directory)
        except (ManifestError, OSError) as error:
            return [file_problem(error, MANIFEST)]
        if manifest is None:
            return []  # another process removes the folder
        found = find_hash_mismatches(
            directory, manifest.files, progress=self._progress or (lambda _bytes: None)
        )
        self._known[directory.absolute()] = (seal, tuple(found))
        return found


def _seal(directory: Path) -> str | None:
    try:
        return hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return None
