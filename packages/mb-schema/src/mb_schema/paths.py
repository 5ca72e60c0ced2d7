"""Rules for fields that name files or directories: local paths only, with the home directory expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mb_schema.rules import Rule

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOME = re.compile(r"(?<!\S)~(?=/|$)|^~[^/]+")
FIX = "Set a local path, or a directory on which the storage is mounted on every node."


def is_url(value: object) -> bool:
    """Return True for text that begins with the scheme of a URL, such as `s3://`."""
    return isinstance(value, str) and _URL.match(value.strip()) is not None


def is_utf8(path: str) -> bool:
    """Return whether a path is UTF-8, so that it can be written to a file; Python keeps other bytes as surrogates."""
    return printable(path) == path


def printable(path: str) -> str:
    """Return a path with each byte that is not UTF-8 as an escape."""
    return path.encode(errors="backslashreplace").decode()


def paths_in(value: object) -> Iterator[str]:
    """Yield every text in a value: the value itself, items of lists and tuples, and values of mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from paths_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from paths_in(item)


def expand_home(value: Any) -> Any:
    """Return a value with a leading `~` of each path replaced by the home directory.

    Paths without `~`, and paths of users who do not exist, are not changed.
    """
    if isinstance(value, str):
        return _expanded(value)
    if isinstance(value, Mapping):
        return {key: expand_home(item) for key, item in value.items()} if _any_home(value) else value
    if isinstance(value, list | tuple):
        return type(value)(expand_home(item) for item in value) if _any_home(value) else value
    return value


def exists(path: str, *, as_folder: bool = False) -> bool:
    """Return whether a path exists (as a folder); False also for one that cannot be read, or whose name is too long."""
    try:
        return Path(path).is_dir() if as_folder else Path(path).exists()
    except OSError:
        return False


def path_problem(value: object) -> str | None:
    """Return the problem of the first path in a value that is not a usable local path, or None."""
    for text in paths_in(value):
        for word in text.split():  # a blend may be one text of alternating weights and prefixes
            if is_url(word):
                return f"{word} is a URL, and would create a local directory named {word.partition('//')[0]}"
        if _HOME.search(text):
            expanded = _expanded(text)
            advice = "no such user" if expanded == text else f"use {expanded}"
            return f"{text} begins with ~, which only a shell or `mb` expands ({advice})"
    return None


def path_rule(number: int, path: str) -> Rule:
    """Return the rule that a field names local paths."""
    return Rule(
        id=f"PA{number:02}",
        fields=(path,),
        test=path_problem,
        why="files are read and written through the local file system only",
        fix=FIX,
        fails={path: "s3://bucket/folder"},
        passes={path: "/data/folder"},
    )


def _expanded(text: str) -> str:
    """Expand each `~` that begins a word of a text, which may consist of alternating weights and prefixes."""
    try:
        return _HOME.sub(lambda home: str(Path(home[0]).expanduser()), text)
    except RuntimeError:  # no such user
        return text


def _any_home(value: object) -> bool:
    return any(_HOME.search(text) for text in paths_in(value))
