"""What commands print inside of a substitution `$(...)`, for commands that need no other program."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import dropwhile
from pathlib import PurePosixPath

from mb_config.megatron_lm.shell.expansion import MAX_ITEMS, evaluate, with_escapes


def printed(
    words: Sequence[str],
    documents: Sequence[str],
    *,
    folder: str,
    contents: Callable[[str], str | None],
) -> str | None:
    """Return what a command of `PRINTING` prints; None if that is not known.

    Args:
        words: Command and its arguments.
        documents: Here-documents that it reads.
        folder: Current folder.
        contents: Function from the name of a file to its text; None for one that cannot be read.
    """
    command, *arguments = words
    if command == "pwd":
        return folder
    if command != "cat":
        return _FUNCTIONS[command](arguments)
    if not arguments:
        return "".join(f"{body}\n" for body in documents) if documents else None
    texts = [contents(name) for name in arguments]
    return None if None in texts else "".join(filter(None, texts))


def _echo(words: Sequence[str]) -> str:
    values = [*dropwhile(lambda word: re.fullmatch("-[neE]+", word), words)]
    options = "".join(words[: len(words) - len(values)])
    text = " ".join(values)
    return (with_escapes(text) if "e" in options else text) + ("" if "n" in options else "\n")


def _printf(words: Sequence[str]) -> str | None:
    pieces = re.split(r"%[sd]", words[0].replace("%%", "\0")) if words else [""]
    if any("%" in piece for piece in pieces) or words[:1] == ["-v"]:
        return None
    fields, values = len(pieces) - 1, [*words[1:]]
    lines = []
    while True:
        items = [*values[:fields], *[""] * fields][:fields]
        lines += [with_escapes(piece) + item for piece, item in zip(pieces, [*items, ""], strict=True)]
        values = values[fields:]
        if not values or not fields:
            return "".join(lines).replace("\0", "%")


def _of_path(work: Callable[[PurePosixPath], str]) -> Callable[[Sequence[str]], str | None]:
    def output(words: Sequence[str]) -> str | None:
        values = [word for word in words if not word.startswith("-")]
        return work(PurePosixPath(values[0])) if len(values) == 1 else None

    return output


def _basename(words: Sequence[str]) -> str | None:
    if len(words) == 2 and not words[0].startswith("-"):
        return PurePosixPath(words[0]).name.removesuffix(words[1])
    return _of_path(lambda path: path.name)(words)


def _expr(words: Sequence[str]) -> str | None:
    try:
        return str(evaluate(" ".join(words)))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _seq(words: Sequence[str]) -> str | None:
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?\d+", word) for word in words):
        return None
    first, step, last = (int(words[0]) if len(words) > 1 else 1), 1, int(words[-1])
    if len(words) == 3:
        step = int(words[1])
    numbers = range(first, last + (1 if step > 0 else -1), step) if step else ()
    return "".join(f"{number}\n" for number in numbers[:MAX_ITEMS])


_FUNCTIONS: Mapping[str, Callable[[Sequence[str]], str | None]] = {
    "echo": _echo,
    "printf": _printf,
    "dirname": _of_path(lambda path: str(path.parent)),
    "basename": _basename,
    "readlink": _of_path(str),
    "realpath": _of_path(str),
    "expr": _expr,
    "seq": _seq,
}
PRINTING = frozenset({"cat", "pwd", *_FUNCTIONS})
"""Commands whose output is known."""
