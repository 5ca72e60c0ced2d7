"""What one process knows of checkpoints, so that it reads the contents of each one once."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from mb_checkpoint.errors import ManifestError
from mb_checkpoint.layout import MANIFEST
from mb_checkpoint.manifest import read_manifest, wrong_contents
from mb_checkpoint.select import problems_in


class Compared:
    """Says what is wrong with a checkpoint: sizes are looked at each time, contents are read and hashed once.

    A folder that was replaced since is another one: what is remembered is the manifest's own hash.

    Args:
        progress: Told the size of each file that was read.
    """

    def __init__(self, *, progress: Callable[[int], object] = lambda _bytes: None) -> None:
        self._progress = progress
        self._known: dict[Path, str] = {}

    def trust(self, directory: Path) -> None:
        """Take a checkpoint as whole whose files were hashed by whoever calls: just written, or just loaded."""
        seal = _seal(directory)
        if seal is not None:
            self._known[directory.absolute()] = seal

    def problems(self, directory: Path, *, contents: bool = True) -> list[str]:
        """Return what is wrong with a checkpoint; nothing for a sound one, and for one that cannot be compared.

        Args:
            directory: Its folder.
            contents: Compare contents; False looks at sizes alone.
        """
        found = problems_in(directory)
        seal = _seal(directory)
        if found or not contents or seal is None or self._known.get(directory.absolute()) == seal:
            return found
        try:
            manifest = read_manifest(directory)
        except (ManifestError, OSError) as error:
            return [str(error)]
        if manifest is not None:
            found = wrong_contents(directory, manifest.files, progress=self._progress)
        if not found:
            self._known[directory.absolute()] = seal
        return found


def _seal(directory: Path) -> str | None:
    try:
        return hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return None
