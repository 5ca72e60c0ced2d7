"""Text and JSON output of the command line."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mb_checkpoint.inspect.inspection import ListedCheckpoint
from mb_checkpoint.load.select import SkippedCheckpoint

_UNITS: tuple[tuple[float, str], ...] = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def print_result(result: object, lines: Sequence[str], *, as_json: bool) -> None:
    """Print a result as JSON if `as_json`, otherwise the lines."""
    print(json.dumps(as_plain(result), indent=1) if as_json else "\n".join(lines))


def as_plain(value: object) -> Any:
    """Convert records, and the containers that hold them, to types that JSON supports."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(name): as_plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def listed_line(checkpoint: ListedCheckpoint) -> str:
    """Return the line of one checkpoint in the listing."""
    state = "; ".join(checkpoint.problems) or ("newest by the tracker" if checkpoint.tracked else "complete")
    if not checkpoint.has_manifest and not checkpoint.unfinished:
        state = f"{state}, no manifest: contents cannot be verified"
    if checkpoint.best is not None:
        state = f"{state}, best: {checkpoint.best}"
    if checkpoint.non_persistent:
        state = f"non-persistent, {state}"
    return f"{checkpoint.step:>9}  {format_bytes(checkpoint.total_bytes):>9}  {checkpoint.path.name}  {state}"


def skipped_lines(skipped: Sequence[SkippedCheckpoint]) -> list[str]:
    """Return one line for each checkpoint that was skipped."""
    return [f"skipped {checkpoint.path}: {checkpoint.reason}" for checkpoint in skipped]


def layout_lines(layout: Mapping[str, int]) -> list[str]:
    """Return the lines of the parallel sizes: one per module with its own parallelism, then one for all other sizes."""
    modules: dict[str, dict[str, int]] = {}
    common_sizes = {}
    for name, size in layout.items():
        module, dot, field = name.rpartition(".")
        if dot:
            modules.setdefault(module, {})[field] = size
        else:
            common_sizes[name] = size
    return [
        *(f"  layout of {module}: {named_values(sizes)}" for module, sizes in modules.items()),
        f"  layout: {named_values(common_sizes)}",
    ]


def named_values(entries: Mapping[str, object]) -> str:
    """Return names and values as one line."""
    return ", ".join(f"{name}={value}" for name, value in entries.items())


def format_bytes(count: int) -> str:
    """Format a number of bytes with its unit."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


@contextmanager
def byte_progress(total: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that adds a number of verified bytes to a progress bar, shown if stdout is a terminal."""
    console = Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda _count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("verifying", total=total)
        yield lambda count: progress.advance(task, count)
