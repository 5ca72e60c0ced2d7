"""Data files that change while a run reads them. The standard library only."""

import time
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".bin", ".idx", ".npy")
"""Suffixes of the data files that are mapped into memory."""


def changed_data_files(*, since: float, maps: str = "/proc/self/maps") -> list[str]:
    """Return a line for each mapped data file that was changed or deleted since a time, in seconds since the epoch.

    A file that is cut short kills the process that reads it (SIGBUS), and one that is overwritten holds token ids
    outside of the vocabulary: neither error names the file. Empty where the system does not list mapped files.
    """
    try:
        mapped = sorted(set(_mapped(maps)))
    except OSError:
        return []
    lines = []
    for name in mapped:
        try:
            changed = Path(name).stat().st_mtime
        except OSError:
            lines.append(f"{name}: was deleted while the run reads it")
            continue
        if changed > since:
            at = time.strftime("%H:%M:%S", time.localtime(changed))
            lines.append(f"{name}: was changed at {at}, while the run reads it; its samples are damaged")
    return lines


def _mapped(maps: str) -> Iterator[str]:
    for line in Path(maps).read_text(errors="replace").splitlines():
        *_, name = line.split(maxsplit=5)
        name = name.removesuffix(" (deleted)")
        if name.endswith(SUFFIXES):
            yield name
