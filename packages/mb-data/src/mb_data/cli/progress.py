"""Progress bar of the command line, on stderr, and the output of a command as text or JSON."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from mb_data.progress import Progress


@contextmanager
def progress_bar(label: str) -> Iterator[Progress]:
    """Yield a function that sets a progress bar, which is shown while the block runs if stderr is a terminal."""
    console = Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ProgressBar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=1)
        yield lambda stage, done, total: bar.update(task, completed=done, total=total, description=stage)


def print_result(result: object, *, as_json: bool, lines: Sequence[str]) -> None:
    """Print `result` as JSON if `as_json`, otherwise the lines."""
    print(json.dumps(result, indent=1) if as_json else "\n".join(lines))
