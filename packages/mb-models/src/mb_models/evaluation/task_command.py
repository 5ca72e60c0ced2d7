"""Command `eval --tasks`: tasks of lm-evaluation-harness, whose lm_eval is imported on demand (extra `lm-eval`)."""

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from mb_models.errors import ModelsError


class MissingHarnessError(ModelsError, ImportError):
    """lm_eval is not installed."""

    bad_input = True


class OpenLM(Protocol):
    """Opens a run as a model of lm_eval."""

    def __call__(
        self,
        run: Path,
        *,
        batch_size: int,
        bos: bool,
        log: Callable[[str], object],
        progress: Callable[[str, int], object],
    ) -> AbstractContextManager[Any]:
        """Return a context with a `TrainedLM` (see `lm_eval`), whose info has the step of the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of `eval --tasks`."""

    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="TASK[,TASK...]",
            help="Evaluate on tasks of lm-evaluation-harness instead: files (*.yaml) or names, such as arc_easy. "
            "A task is code: its functions and templates run.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="--tasks: read so many documents of each task.", show_default=False
        ),
    ] = None
    num_fewshot: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="--tasks: solved examples in each prompt.", show_default=False),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="--tasks: sequences of a batch at most (default: 16).",
            show_default=False,
        ),
    ] = None
    chat: Annotated[bool, typer.Option("--chat", help="--tasks: apply the chat template.")] = False
    bos: Annotated[
        bool,
        typer.Option(
            "--bos",
            help="--tasks: begin each text with the tokenizer's beginning-of-sequence token, for models that were "
            "trained with it, such as an imported Llama.",
        ),
    ] = False

    def require_tasks(self) -> None:
        """Reject options that need `--tasks`.

        Raises:
            typer.BadParameter: one of them is given without it.
        """
        if self.tasks is not None:
            if not all(self.names):
                raise typer.BadParameter("needs a file or a name between the commas", param_hint="--tasks")
            return
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise typer.BadParameter(
                    "needs --tasks, because it only applies to tasks",
                    param_hint=f"--{field.name.replace('_', '-')}",
                )

    @property
    def names(self) -> list[str]:
        """Files and names of tasks."""
        return [name.strip() for name in (self.tasks or "").split(",")]


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


def run_tasks(
    run: Path,
    options: TaskOptions,
    *,
    open_lm: Callable[[], OpenLM],
    log: Callable[[str], object],
    prints: Callable[[], bool],
    as_json: bool,
) -> int:
    """Evaluate a run on tasks and print the metrics on the first rank. The tasks are loaded before the model.

    Raises:
        MissingHarnessError: lm_eval is not installed.
        mb_models.evaluation.lm_eval_tasks.TaskError: a task cannot be loaded.
    """
    tasks_module = harness()
    with without_bars():
        tasks = tasks_module.load_tasks(options.names)
    settings = tasks_module.TaskSettings(
        limit=options.limit, num_fewshot=options.num_fewshot, chat=options.chat
    )
    progress = BatchProgress()
    with open_lm()(
        run, batch_size=options.batch_size or 16, bos=options.bos, log=log, progress=progress
    ) as lm:
        with without_bars():
            results = tasks_module.evaluate_tasks(lm, tasks, settings)
        step = lm.get_model_info()["step"]
    progress.end()
    if results is None or not prints():
        return 0
    metrics = tasks_module.metrics_of(results)
    if as_json:
        print(json.dumps({"step": step, "metrics": [asdict(each) for each in metrics], **_origin(results)}))
    else:
        rows = [("task", "metric", "value", "stderr", "documents"), *(each.row for each in metrics)]
        print("\n".join([f"step {step}", *table_lines(rows, left=2)]))
    return 0


def _origin(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes the results comparable: versions of the harness and of the tasks, and examples in prompts."""
    return {
        "lm_eval_version": results["lm_eval_version"],
        "task_versions": results["versions"],
        "num_fewshot": results["n-shot"],
    }


def table_lines(rows: list[tuple[str, ...]], *, left: int) -> list[str]:
    """Return aligned rows; the first `left` columns are aligned on the left."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if column < left else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in rows
    ]
