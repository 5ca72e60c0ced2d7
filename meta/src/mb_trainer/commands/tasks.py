"""`mb eval --tasks`: tasks of lm-evaluation-harness, whose lm_eval is imported on demand (extra `lm-eval`)."""

import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_trainer.commands.text import log, prints, table_lines, with_megatron
from mb_trainer.errors import TrainerError


class MissingHarnessError(TrainerError, ImportError):
    """lm_eval is not installed."""

    bad_input = True


class StderrWithoutBars(io.TextIOBase):
    """Standard error without the progress bars of lm_eval and datasets, for output that is not a terminal."""

    def __init__(self) -> None:
        self._stream = sys.stderr

    def write(self, text: str) -> int:
        """Write a text, unless it is a state of a progress bar or the line break after it."""
        if "\r" not in text and text.strip():
            self._stream.write(text if text.endswith("\n") else f"{text}\n")
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        self._stream.flush()


class BatchProgress:
    """Writes to a terminal how many requests have been computed."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __call__(self, kind: str, count: int) -> None:
        """Add `count` requests of a kind."""
        self._counts[kind] = self._counts.get(kind, 0) + count
        if sys.stderr.isatty():
            done = ", ".join(f"{number:,} {name}" for name, number in self._counts.items())
            print(f"\rcomputed: {done}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the line."""
        if self._counts and sys.stderr.isatty():
            print(file=sys.stderr)


def harness() -> Any:
    """Return the module `mb_models.evaluation.lm_eval_tasks`.

    Raises:
        MissingHarnessError: lm_eval is not installed.
    """
    try:
        return import_module("mb_models.evaluation.lm_eval_tasks")
    except ModuleNotFoundError as error:
        if error.name not in ("lm_eval", "datasets"):
            raise
        raise MissingHarnessError(
            '--tasks: lm_eval is not installed. Install it: pip install "mb-models[lm-eval]".'
        ) from error


@contextmanager
def without_bars() -> Iterator[None]:
    """Leave progress bars out of the standard error unless it is a terminal."""
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(StderrWithoutBars()):
        yield


def evaluate(
    run: Path,
    tasks: Sequence[str],
    *,
    limit: int | None,
    num_fewshot: int | None,
    batch_size: int,
    chat: bool,
    bos: bool,
    as_json: bool,
) -> int:
    """Evaluate a run on tasks, print the metrics on the first rank, and return the exit code.

    The tasks are loaded before the model.
    """
    tasks_module = harness()
    with without_bars():
        loaded = tasks_module.load_tasks(tasks)
    settings = tasks_module.TaskSettings(limit=limit, num_fewshot=num_fewshot, chat=chat)
    progress = BatchProgress()
    open_lm = with_megatron("lm_eval").open_lm
    with open_lm(run, batch_size=batch_size, bos=bos, log=log, progress=progress) as lm:
        with without_bars():
            results = tasks_module.evaluate_tasks(lm, loaded, settings)
        step = lm.get_model_info()["step"]
    progress.end()
    if prints():
        print_metrics(step, tasks_module.metrics_of(results), results, as_json=as_json)
    return 0


def print_metrics(step: int, metrics: Any, results: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the metrics of all tasks, as a table or as JSON with what makes them comparable."""
    if as_json:
        print(json.dumps({"step": step, "metrics": [asdict(each) for each in metrics], **_origin(results)}))
    else:
        rows = [("task", "metric", "value", "stderr", "documents"), *(each.row for each in metrics)]
        print("\n".join([f"step {step}", *table_lines(rows, left=2)]))


def _origin(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes the results comparable: versions of the harness and of the tasks, and examples in prompts."""
    return {
        "lm_eval_version": results["lm_eval_version"],
        "task_versions": results["versions"],
        "num_fewshot": results["n-shot"],
    }
