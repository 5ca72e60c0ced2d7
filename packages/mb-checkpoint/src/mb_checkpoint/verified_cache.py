"""What one process knows of checkpoints, so that it reads the contents of each one once."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from mb_checkpoint.errors import ManifestError
from mb_checkpoint.layout import MANIFEST
from mb_checkpoint.manifest import find_hash_mismatches, read_manifest
from mb_checkpoint.select import find_problems


class VerifiedCache:
    """Says what is wrong with a checkpoint: sizes are looked at each time, contents are read and hashed once.

    A folder that was replaced since is another one: what is remembered is the manifest's own hash.

    Args:
        progress: Told each number of bytes read.
    """

    def __init__(self, *, progress: Callable[[int], object] = lambda _bytes: None) -> None:
        self._progress = progress
        self._known: dict[Path, tuple[str, tuple[str, ...]]] = {}

    def trust(self, directory: Path) -> None:
        """Take a checkpoint as whole whose files were hashed by whoever calls: just written, or just loaded."""
        self._remember(directory, _seal(directory), [])

    def distrust(self, directory: Path, reason: str) -> None:
        """Take a checkpoint as damaged that whoever calls has found so."""
        self._remember(directory, _seal(directory), [reason])

    def problems(self, directory: Path, *, contents: bool = True) -> list[str]:
        """Return what is wrong with a checkpoint; nothing for a sound one, and for one that cannot be compared.

        Args:
            directory: Its folder.
            contents: Compare contents where they are not known; False looks at sizes alone there.
        """
        found = find_problems(directory)
        seal = _seal(directory)
        known, problems = self._known.get(directory.absolute(), (None, ()))
        if found or seal is None:
            return found
        if known == seal:
            return list(problems)
        if not contents:
            return []
        try:
            manifest = read_manifest(directory)
        except (ManifestError, OSError) as error:
            return [str(error)]
        if manifest is not None:
            found = find_hash_mismatches(directory, manifest.files, progress=self._progress)
        self._remember(directory, seal, found)
        return found

    def _remember(self, directory: Path, seal: str | None, problems: list[str]) -> None:
        if seal is not None:
            self._known[directory.absolute()] = (seal, tuple(problems))


def _seal(directory: Path) -> str | None:
    try:
        return hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return None
